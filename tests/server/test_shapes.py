"""Answers have OpenAI's shapes, whole and streamed."""

import json
from collections.abc import Iterator

import httpx
import pytest

from quantkit.server import create_app
from tests.helpers.fake_engine import FakeEngine, Piece
from tests.helpers.serving import events, make_tokenizer, serving, stream

CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEngine]:
    with FakeEngine(["Hel", "", "lo", " w\u00f6rld\u2028", ""], num_cached=2) as engine:
        yield engine


@pytest.fixture(scope="module")
def client(engine: FakeEngine) -> Iterator[httpx.Client]:
    app = create_app(engine, make_tokenizer(), model_name="tiny", max_model_len=64)
    with serving(app) as client:
        yield client


TEXT = "Hello w\u00f6rld\u2028"


def test_chat_whole(client: httpx.Client) -> None:
    response = client.post(CHAT, json={"model": "tiny", "messages": MESSAGES})
    answer = response.json()
    assert answer["id"].startswith("chatcmpl-")
    assert response.headers["x-request-id"] == answer["id"]
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "tiny"
    assert answer["system_fingerprint"].startswith("fp_")
    assert isinstance(answer["created"], int)
    prompt = len(make_tokenizer().encode_chat(MESSAGES, add_generation_prompt=True))
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 5,
        "total_tokens": prompt + 5,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": TEXT, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


@pytest.mark.parametrize("usage", [False, True])
def test_chat_stream(client: httpx.Client, usage: bool) -> None:
    body = {"messages": MESSAGES}
    if usage:
        body["stream_options"] = {"include_usage": True}
    *chunks, done = stream(client, CHAT, body)
    assert done == "[DONE]"
    if usage:
        last = chunks.pop()
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 5
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert all("usage" not in chunk for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in choice["delta"] for choice in choices[1:])
    assert "".join(choice["delta"].get("content", "") for choice in choices) == TEXT
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == "stop"
    assert choices[-1]["delta"] == {}


def test_completion_whole_and_streamed_agree(client: httpx.Client) -> None:
    body = {"prompt": "Hi", "max_tokens": 3}
    whole = client.post(PLAIN, json=body).json()
    assert whole["id"].startswith("cmpl-")
    assert whole["object"] == "text_completion"
    assert whole["choices"] == [
        {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "length"}
    ]
    assert whole["usage"]["prompt_tokens"] == len(make_tokenizer().encode("Hi"))
    *chunks, done = stream(client, PLAIN, body)
    assert done == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == "Hello"
    assert [choice["finish_reason"] for choice in choices] == [None, None, "length"]


def test_completion_default_length_is_16() -> None:
    with FakeEngine(["x"] * 40) as engine:
        app = create_app(engine, make_tokenizer(), model_name="t", max_model_len=64)
        with serving(app) as client:
            answer = client.post(PLAIN, json={"prompt": "Hi"}).json()
            assert answer["choices"][0]["finish_reason"] == "length"
            assert answer["usage"]["completion_tokens"] == 16
            answer = client.post(CHAT, json={"messages": MESSAGES}).json()
            assert answer["usage"]["completion_tokens"] == 40


@pytest.mark.parametrize("streamed", [False, True])
def test_n_choices_and_lists_of_prompts(
    client: httpx.Client, engine: FakeEngine, streamed: bool
) -> None:
    before = len(engine.requests)
    body = {"prompt": ["Hi", "Hello there"], "n": 2, "seed": 5, "temperature": 1}
    ids = [make_tokenizer().encode(prompt) for prompt in body["prompt"]]
    if streamed:
        *chunks, usage, _ = stream(
            client, PLAIN, {**body, "stream_options": {"include_usage": True}}
        )
        reasons = [
            (choice["index"], choice["finish_reason"])
            for chunk in chunks
            for choice in chunk["choices"]
            if choice["finish_reason"]
        ]
        usage = usage["usage"]
    else:
        answer = client.post(PLAIN, json=body).json()
        reasons = [(choice["index"], choice["finish_reason"]) for choice in answer["choices"]]
        usage = answer["usage"]
    assert sorted(reasons) == [(i, "stop") for i in range(4)]
    assert usage["prompt_tokens"] == len(ids[0]) + len(ids[1])
    assert usage["completion_tokens"] == 20
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}
    jobs = engine.requests[before:]
    assert [job.prompt_ids for job in jobs] == [ids[0], ids[0], ids[1], ids[1]]
    seeds = [job.params.seed for job in jobs]
    assert seeds[:2] == seeds[2:]
    assert seeds[0] == 5
    assert seeds[1] != 5


def test_each_choice_of_a_chat_stream_has_one_role_and_one_reason(client: httpx.Client) -> None:
    chunks = stream(client, CHAT, {"messages": MESSAGES, "n": 3, "max_tokens": 2})[:-1]
    for index in range(3):
        choices = [
            choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index
        ]
        assert ["role" in choice["delta"] for choice in choices] == [True, False, False]
        assert [choice["finish_reason"] for choice in choices] == [None, None, "length"]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [([5, 6, 7], [[5, 6, 7]]), ([[5, 6], [7]], [[5, 6], [7]]), (["a"], None)],
)
def test_prompt_forms(
    client: httpx.Client, engine: FakeEngine, prompt: list, expected: list | None
) -> None:
    before = len(engine.requests)
    assert client.post(PLAIN, json={"prompt": prompt}).status_code == 200
    got = [job.prompt_ids for job in engine.requests[before:]]
    assert got == (expected or [make_tokenizer().encode("a")])


def test_text_parts_are_joined(client: httpx.Client, engine: FakeEngine) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "user", "content": parts}]
    assert client.post(CHAT, json={"messages": messages}).status_code == 200
    expected = [{"role": "user", "content": "one\ntwo"}]
    assert engine.requests[-1].prompt_ids == make_tokenizer().encode_chat(
        expected, add_generation_prompt=True
    )


def test_parameters_reach_the_engine(client: httpx.Client, engine: FakeEngine) -> None:
    body = {
        "messages": MESSAGES,
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.1,
        "logit_bias": {"7": 100, "8": -100},
        "seed": -3,
        "stop": "end",
        "stop_token_ids": [9],
        "ignore_eos": True,
        "min_tokens": 2,
        "logprobs": True,
        "top_logprobs": 2,
        "user": "someone",
        "never_heard_of": {"a": 1},
    }
    assert client.post(CHAT, json=body).status_code == 200
    params = engine.requests[-1].params
    assert (params.max_tokens, params.min_tokens) == (9, 2)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 0, 0.1)
    assert (params.presence_penalty, params.frequency_penalty) == (1, -1)
    assert (params.repetition_penalty, params.seed, params.ignore_eos) == (1.1, -3, True)
    assert (params.stop, params.stop_token_ids, params.logprobs) == (("end",), (9,), 2)
    assert params.logit_bias == {7: 100.0, 8: -100.0}


def test_models_and_version(client: httpx.Client) -> None:
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    (card,) = listed["data"]
    assert card["id"] == "tiny"
    assert card["object"] == "model"
    assert card["max_model_len"] == 64
    assert card["sampling_defaults"]["temperature"] == 1.0
    assert client.get("/v1/models/tiny").json() == card
    assert client.get("/version").json()["version"]
    assert client.get("/health").json() == {"status": "ok"}


def test_tokenize_and_detokenize(client: httpx.Client) -> None:
    tokenizer = make_tokenizer()
    answer = client.post("/tokenize", json={"prompt": "Hello <s>"}).json()
    assert answer["tokens"] == tokenizer.encode("Hello <s>")
    assert answer["count"] == len(answer["tokens"])
    answer = client.post("/tokenize", json={"messages": MESSAGES}).json()
    assert answer["tokens"] == tokenizer.encode_chat(MESSAGES, add_generation_prompt=True)
    text = client.post("/detokenize", json={"tokens": tokenizer.encode("Hello")}).json()
    assert text == {"prompt": "Hello"}


def test_lines_are_not_split_by_unicode_line_ends(client: httpx.Client) -> None:
    body = {"messages": MESSAGES, "stream": True}
    raw = client.post(CHAT, json=body).content
    assert len(raw.decode().splitlines()) == raw.count(b"\n")
    assert events(iter(raw.decode().split("\n")))[-1] == "[DONE]"


def test_ping_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantkit.server.answer.PING_SECONDS", 0.05)
    with FakeEngine(["a", "b", "c"], pace=0.3) as engine:
        app = create_app(engine, make_tokenizer(), model_name="t", max_model_len=64)
        with serving(app) as client:
            raw = client.post(CHAT, json={"messages": MESSAGES, "stream": True}).text
    assert raw.count(": ping\n\n") >= 2
    texts = [e["choices"][0]["delta"].get("content") for e in events(iter(raw.split("\n")))[:-1]]
    assert "".join(text or "" for text in texts) == "abc"


@pytest.mark.parametrize("path", [CHAT, PLAIN])
def test_error_of_the_engine(path: str) -> None:
    body = {"messages": MESSAGES} if path == CHAT else {"prompt": "Hi"}
    with FakeEngine(["a", "b"], error="the step failed") as engine:
        app = create_app(engine, make_tokenizer(), model_name="t", max_model_len=64)
        with serving(app) as client:
            response = client.post(path, json=body)
            assert response.status_code == 500
            assert response.json()["error"]["message"] == "the step failed"
            *_, last = stream(client, path, body)
            assert last == response.json()


def test_strict_json_for_infinite_logprobs() -> None:
    script = [Piece("a", 7, float("-inf"), ((8, -0.1), (9, float("-inf")))), Piece("b", 8)]
    with FakeEngine(script) as engine:
        app = create_app(engine, make_tokenizer(), model_name="t", max_model_len=64)
        with serving(app) as client:
            chat = client.post(
                CHAT, json={"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}
            )
            plain = client.post(PLAIN, json={"prompt": "Hi", "logprobs": 2})
    for response in (chat, plain):
        assert response.status_code == 200
        json.loads(response.text, parse_constant=pytest.fail)
    first = chat.json()["choices"][0]["logprobs"]["content"][0]
    assert first["logprob"] == -9999.0
    assert [top["logprob"] for top in first["top_logprobs"]] == [-0.1, -9999.0]
    report = plain.json()["choices"][0]["logprobs"]
    assert report["token_logprobs"][0] == -9999.0
    assert report["tokens"][0] in report["top_logprobs"][0]
