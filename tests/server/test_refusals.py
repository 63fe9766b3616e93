"""Requests that cannot be meant are answered with 4xx that names the field, never with 500."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from quantkit.server import create_app
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.serving import error_of, make_tokenizer, serving

CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"
USER = {"role": "user", "content": "Hi"}
NAN = float("nan")


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with FakeEngine(["a", "b"]) as engine:
        app = create_app(engine, make_tokenizer(), model_name="org/tiny", max_model_len=64)
        with serving(app) as client:
            yield client


def post(client: httpx.Client, path: str, body: Any) -> httpx.Response:
    """JSON as Python writes it, NaN included."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(path, content=data, headers={"Content-Type": "application/json"})


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER], **fields}


BODIES: list[tuple[str, Any, str | None]] = [
    (CHAT, b"", None),
    (CHAT, b"{", None),
    (CHAT, b"[]", None),
    (CHAT, b"null", None),
    (CHAT, b'"text"', None),
    (CHAT, b"\xff\xfe", None),
    (CHAT, b"[" * 100_000, None),
    (CHAT, {}, "messages"),
    (CHAT, {"messages": "Hi"}, "messages"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": [1]}, "messages[0]"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (CHAT, {"messages": [USER, {"content": "Hi"}]}, "messages[1].role"),
    (CHAT, {"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "tool", "content": "Hi"}]}, "messages[0].role"),
    (CHAT, {"messages": [{**USER, "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    (CHAT, {"messages": [{**USER, "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    (CHAT, {"messages": [{**USER, "content": "\ud800"}]}, "messages[0].content"),
    (
        CHAT,
        {"messages": [{**USER, "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
    ),
    (CHAT, chat(max_tokens="ten"), "max_tokens"),
    (CHAT, chat(max_tokens=-5), "max_tokens"),
    (CHAT, chat(max_tokens=0), "max_tokens"),
    (CHAT, chat(max_tokens=1e30), "max_tokens"),
    (CHAT, chat(max_tokens=True), "max_tokens"),
    (CHAT, chat(max_completion_tokens=0), "max_completion_tokens"),
    (CHAT, chat(temperature="hot"), "temperature"),
    (CHAT, chat(temperature=-1), "temperature"),
    (CHAT, chat(temperature=NAN), "temperature"),
    (CHAT, chat(temperature=1e30), "temperature"),
    (CHAT, chat(top_p=1.5), "top_p"),
    (CHAT, chat(top_p=0), "top_p"),
    (CHAT, chat(top_k=-2), "top_k"),
    (CHAT, chat(top_k=1.5), "top_k"),
    (CHAT, chat(min_p=2), "min_p"),
    (CHAT, chat(repetition_penalty=0), "repetition_penalty"),
    (CHAT, chat(presence_penalty=3), "presence_penalty"),
    (CHAT, chat(frequency_penalty="x"), "frequency_penalty"),
    (CHAT, chat(n=0), "n"),
    (CHAT, chat(n=10_000), "n"),
    (CHAT, chat(stream="yes"), "stream"),
    (CHAT, chat(stream_options={"include_usage": True}), "stream_options"),
    (CHAT, chat(stream=True, stream_options={"include_usage": 1}), "stream_options.include_usage"),
    (CHAT, chat(seed=2**70), "seed"),
    (CHAT, chat(seed="one"), "seed"),
    (CHAT, chat(logprobs="yes"), "logprobs"),
    (CHAT, chat(top_logprobs=3), "top_logprobs"),
    (CHAT, chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    (CHAT, chat(stop=""), "stop"),
    (CHAT, chat(stop=[""]), "stop"),
    (CHAT, chat(stop=["x", ""]), "stop"),
    (CHAT, chat(stop=["x"] * 17), "stop"),
    (CHAT, chat(stop=5), "stop"),
    (CHAT, chat(stop_token_ids=[512]), "stop_token_ids"),
    (CHAT, chat(stop_token_ids="9"), "stop_token_ids"),
    (CHAT, chat(min_tokens=9, max_tokens=3), "min_tokens"),
    (CHAT, chat(ignore_eos=1), "ignore_eos"),
    (CHAT, chat(logit_bias={"512": 1}), "logit_bias"),
    (CHAT, chat(logit_bias={"-1": 1}), "logit_bias"),
    (CHAT, chat(logit_bias={"1e3": 1}), "logit_bias"),
    (CHAT, chat(logit_bias={"abc": 1}), "logit_bias"),
    (CHAT, chat(logit_bias={"\u0661": 1}), "logit_bias"),
    (CHAT, chat(logit_bias={"5": 1000}), "logit_bias"),
    (CHAT, chat(logit_bias={"5": NAN}), "logit_bias"),
    (CHAT, chat(logit_bias={"5": None}), "logit_bias"),
    (CHAT, chat(logit_bias=[5]), "logit_bias"),
    (CHAT, chat(chat_template_kwargs={"messages": []}), "chat_template_kwargs"),
    (CHAT, chat(chat_template_kwargs=[]), "chat_template_kwargs"),
    (CHAT, chat(response_format={"type": "json_object"}), "response_format"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "f"}}]), "tools"),
    (CHAT, chat(tool_choice="required"), "tool_choice"),
    (CHAT, chat(functions=[{"name": "f"}]), "functions"),
    (CHAT, chat(parallel_tool_calls=True), "parallel_tool_calls"),
    (CHAT, chat(audio={"voice": "x"}), "audio"),
    (CHAT, chat(modalities=["text", "audio"]), "modalities"),
    (CHAT, chat(best_of=3), "best_of"),
    (CHAT, chat(model=5), "model"),
    (PLAIN, {}, "prompt"),
    (PLAIN, {"prompt": ""}, "prompt"),
    (PLAIN, {"prompt": []}, "prompt"),
    (PLAIN, {"prompt": [[]]}, "prompt[0]"),
    (PLAIN, {"prompt": ["a", 5]}, "prompt[1]"),
    (PLAIN, {"prompt": [5, "a"]}, "prompt[1]"),
    (PLAIN, {"prompt": [True]}, "prompt"),
    (PLAIN, {"prompt": [512]}, "prompt"),
    (PLAIN, {"prompt": [-1]}, "prompt[0]"),
    (PLAIN, {"prompt": {"a": 1}}, "prompt"),
    (PLAIN, {"prompt": None}, "prompt"),
    (PLAIN, {"prompt": "a", "logprobs": True}, "logprobs"),
    (PLAIN, {"prompt": "a", "logprobs": 21}, "logprobs"),
    (PLAIN, {"prompt": "a", "suffix": "b"}, "suffix"),
    (PLAIN, {"prompt": "a", "echo": True}, "echo"),
    (PLAIN, {"prompt": "a", "best_of": 2}, "best_of"),
    (PLAIN, {"prompt": "a", "guided_json": {}}, "guided_json"),
    (PLAIN, {"prompt": "a", "skip_special_tokens": False}, "skip_special_tokens"),
    ("/tokenize", {}, "prompt"),
    ("/detokenize", {"tokens": [512]}, "tokens"),
]


@pytest.mark.parametrize(("path", "body", "param"), BODIES, ids=lambda value: str(value)[:40])
def test_bad_bodies(client: httpx.Client, path: str, body: Any, param: str | None) -> None:
    response = post(client, path, body)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    if param is not None:
        assert param.split("[")[0] in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": None},
        {"stop": []},
        {"stop": ["a", "b", "c", "d", "e"]},
        {"stop": "x" * 10_000},
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"n": 2, "best_of": 2},
        {"store": False, "metadata": {"a": "b"}, "service_tier": "auto"},
        {"some_new_field": [1, 2, 3]},
        {"logit_bias": {str(token): 1 for token in range(500)}},
        {"logit_bias": {}, "chat_template_kwargs": {"enable_thinking": False}},
        {"temperature": 0, "top_k": 10_000},
        {"temperature": 1e-45, "top_p": 1e-9, "min_p": 1},
        {"max_tokens": 2**31 - 1},
        {"model": "org/tiny"},
        {"messages": [{"role": "developer", "content": "Be brief"}, {**USER, "name": "Ann"}]},
    ],
    ids=str,
)
def test_good_bodies(client: httpx.Client, fields: dict[str, Any]) -> None:
    response = post(client, CHAT, chat(**fields))
    assert response.status_code == 200, response.text


def test_bad_bias_is_named(client: httpx.Client) -> None:
    for key, bias in (("512", 1), ("1e3", 1), ("5", 1000), ("5", None)):
        response = post(client, CHAT, chat(logit_bias={"3": 1, key: bias}))
        assert key in error_of(response)["message"]


@pytest.mark.parametrize("path", [CHAT, PLAIN])
def test_unknown_model(client: httpx.Client, path: str) -> None:
    response = post(client, path, {"model": "gpt-9", "messages": [USER], "prompt": "a"})
    assert response.status_code == 404
    error = error_of(response)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "org/tiny" in error["message"]
    assert client.get("/v1/models/org/tiny").status_code == 200
    assert error_of(client.get("/v1/models/gpt-9"))["code"] == "model_not_found"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_wrong_content_type(client: httpx.Client, kind: str) -> None:
    response = client.post(CHAT, content=b"{}", headers={"Content-Type": kind})
    assert response.status_code == 415
    assert "application/json" in error_of(response)["message"]


def test_wrong_paths_and_methods(client: httpx.Client) -> None:
    assert client.get("/v2/nothing").status_code == 404
    assert error_of(client.get("/v2/nothing"))["message"]
    assert client.get(CHAT).status_code == 405
    assert error_of(client.get(CHAT))["message"]


def test_good_request_after_all_that(client: httpx.Client) -> None:
    answer = post(client, CHAT, chat())
    assert answer.json()["choices"][0]["message"]["content"] == "ab"


@pytest.mark.parametrize(
    ("length", "max_tokens", "generated"),
    [(62, None, 2), (63, None, 1), (63, 5, 1), (60, 5, 4), (64, None, 0), (65, 1, 0), (5000, 1, 0)],
)
def test_context_boundary(length: int, max_tokens: int | None, generated: int) -> None:
    """A prompt must leave room for one token; a longer ``max_tokens`` is cut to what fits."""
    with FakeEngine(["x"] * 40) as engine:
        app = create_app(engine, make_tokenizer(), model_name="t", max_model_len=64)
        with serving(app) as client:
            body = {"prompt": [5] * length, "max_tokens": max_tokens}
            response = post(client, PLAIN, body)
            assert client.get("/health").status_code == 200
    if generated:
        answer = response.json()
        assert answer["usage"]["completion_tokens"] == generated
        assert answer["choices"][0]["finish_reason"] == "length"
    else:
        assert response.status_code == 400
        error = error_of(response)
        assert error["code"] == "context_length_exceeded"
        assert str(length) in error["message"]
        assert "64" in error["message"]
        assert not engine.requests


def test_long_chat_is_refused_before_the_stream(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "word " * 200}]
    response = post(client, CHAT, {"messages": messages, "stream": True})
    assert response.status_code == 400
    error = error_of(response)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
