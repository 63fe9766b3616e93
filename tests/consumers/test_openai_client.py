"""The official client library talks to the server: answers, streams, usage and error classes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from quantkit.server import create_app
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.serving import make_tokenizer, serve_program, serving
from tests.helpers.tiny import tiny_model

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.consumers
MESSAGES = [{"role": "user", "content": "Say something."}]
GREEDY = {"temperature": 0, "max_tokens": 10, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model("llama", tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator["openai.OpenAI"]:
    with (
        serve_program(folder, api_keys=["secret"]) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="secret", max_retries=0) as client,
    ):
        yield client


def prompt_tokens(folder: Path) -> int:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return len(tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"])


def test_models(client: "openai.OpenAI") -> None:
    (model,) = client.models.list().data
    assert model.id == "tiny-llama"
    assert client.models.retrieve("tiny-llama").owned_by == "quantkit"


def test_chat(client: "openai.OpenAI", folder: Path) -> None:
    answer = client.chat.completions.create(model="tiny-llama", messages=MESSAGES, **GREEDY)
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage.prompt_tokens == prompt_tokens(folder)
    assert answer.usage.completion_tokens == 10
    assert answer.usage.total_tokens == prompt_tokens(folder) + 10
    events = client.chat.completions.create(
        model="tiny-llama",
        messages=MESSAGES,
        stream=True,
        stream_options={"include_usage": True},
        **GREEDY,
    )
    *chunks, last = events
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == choice.message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, "length"]
    assert last.choices == []
    assert last.usage.prompt_tokens == answer.usage.prompt_tokens
    assert last.usage.completion_tokens == 10


def test_completions(client: "openai.OpenAI") -> None:
    answer = client.completions.create(model="tiny-llama", prompt="import", logprobs=3, **GREEDY)
    (choice,) = answer.choices
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 10
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == 10
    assert choice.logprobs.text_offset[0] == 0
    chunks = list(
        client.completions.create(model="tiny-llama", prompt="import", stream=True, **GREEDY)
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    assert chunks[-1].choices[0].finish_reason == "length"


def test_chat_logprobs_and_choices(client: "openai.OpenAI") -> None:
    answer = client.chat.completions.create(
        model="tiny-llama", messages=MESSAGES, n=2, logprobs=True, top_logprobs=4, **GREEDY
    )
    first, second = answer.choices
    assert [first.index, second.index] == [0, 1]
    assert first.message.content == second.message.content
    for token in first.logprobs.content:
        assert len(token.top_logprobs) == 4
        assert token.top_logprobs[0].token == token.token
        assert token.logprob <= 0
    assert answer.usage.completion_tokens == 20


def test_stream_accumulator(client: "openai.OpenAI") -> None:
    """The client's own accumulator finds a complete answer."""
    with client.chat.completions.stream(model="tiny-llama", messages=MESSAGES, **GREEDY) as events:
        text = "".join(event.delta for event in events if event.type == "content.delta")
        whole = events.current_completion_snapshot
    assert whole.choices[0].message.content == text
    assert whole.choices[0].finish_reason == "length"


def test_error_classes(client: "openai.OpenAI") -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.NotFoundError) as missing:
        create(model="gpt-9", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as invalid:
        create(model="tiny-llama", messages=MESSAGES, temperature=-1)
    assert invalid.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as unsupported:
        create(model="tiny-llama", messages=MESSAGES, response_format={"type": "json_object"})
    assert unsupported.value.param == "response_format"
    with pytest.raises(openai.BadRequestError) as long:
        create(model="tiny-llama", messages=[{"role": "user", "content": "x " * 900}], stream=True)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_errors_of_a_full_and_of_a_failing_server() -> None:
    app_options = {"model_name": "t", "max_model_len": 64}
    with FakeEngine(["x"] * 50, pace=0.1) as engine:
        app = create_app(engine, make_tokenizer(), **app_options, max_num_seqs=1, max_queue=0)
        with (
            serving(app) as http,
            openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="-", max_retries=0) as client,
            client.completions.create(model="t", prompt="a", stream=True, max_tokens=50) as events,
        ):
            next(iter(events))
            with pytest.raises(openai.RateLimitError):
                client.completions.create(model="t", prompt="a")
    with FakeEngine(["x", "y"], error="the step failed") as engine:
        app = create_app(engine, make_tokenizer(), **app_options)
        with (
            serving(app) as http,
            openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="-", max_retries=0) as client,
        ):
            with pytest.raises(openai.InternalServerError):
                client.completions.create(model="t", prompt="a")
            with pytest.raises(openai.APIError, match="the step failed"):
                list(client.completions.create(model="t", prompt="a", stream=True))
