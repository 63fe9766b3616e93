"""Text through the real engine: characters over several tokens, stop strings, reasons to end."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from quantkit.server import create_app
from tests.helpers.fake_backend import (
    EOS,
    FakeModel,
    byte_tokenizer,
    fake_engine,
    scripted_logits,
)
from tests.helpers.serving import serving, stream

CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"


@contextmanager
def saying(text: str, *, prompt: int = 1) -> Iterator[httpx.Client]:
    """A server whose model says a text, one byte a token, then ends, after ``prompt`` tokens."""
    script = [0] * (prompt - 1) + [*text.encode(), EOS]
    engine = fake_engine(FakeModel(logits=scripted_logits(script)), block_size=16)
    engine.start()
    try:
        app = create_app(
            engine, byte_tokenizer(), model_name="t", max_model_len=256, vocab_size=257
        )
        with serving(app) as client:
            yield client
    finally:
        engine.stop()


def both(client: httpx.Client, **fields: Any) -> tuple[str, str | None, int]:
    """Text, reason and token count of an answer, which are the same whole and streamed."""
    body = {"prompt": [65], "temperature": 0, "max_tokens": 200, **fields}
    answer = client.post(PLAIN, json=body).json()
    (whole,) = answer["choices"]
    *chunks, usage, _ = stream(client, PLAIN, {**body, "stream_options": {"include_usage": True}})
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert choices[-1]["finish_reason"] == whole["finish_reason"]
    assert usage["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]
    return whole["text"], whole["finish_reason"], answer["usage"]["completion_tokens"]


SCRIPT = "\u00e9 \U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \ud55c\uae00"


def test_characters_over_several_tokens() -> None:
    with saying(SCRIPT) as client:
        assert both(client) == (SCRIPT, "stop", len(SCRIPT.encode()) + 1)
        text, reason, _ = both(client, max_tokens=5)  # ends inside the second character
        assert (text, reason) == ("\u00e9 ", "length")
        body = {"prompt": [[65]] * 4, "temperature": 0, "max_tokens": 200}
        answer = client.post(PLAIN, json=body).json()
        assert [choice["text"] for choice in answer["choices"]] == [SCRIPT] * 4


@pytest.mark.parametrize(
    ("stop", "expected", "reason", "tokens"),
    [
        ("DEFG", "ABC", "stop", 7),
        ("CD", "AB", "stop", 4),
        ("G", "ABCDEF", "stop", 7),
        (["DEX", "EF"], "ABCD", "stop", 6),
        ("DEFX", "ABCDEFG", "stop", 8),
        ("ABCDEFG", "", "stop", 7),
        ([], "ABCDEFG", "stop", 8),
    ],
)
def test_stop_strings(stop: str | list[str], expected: str, reason: str, tokens: int) -> None:
    with saying("ABCDEFG") as client:
        assert both(client, stop=stop) == (expected, reason, tokens)


def test_logprobs_of_partial_characters() -> None:
    with saying("a\u20ac") as client:
        body = {"prompt": [65], "temperature": 0, "max_tokens": 10, "logprobs": 1}
        report = client.post(PLAIN, json=body).json()["choices"][0]["logprobs"]
        assert report["tokens"] == ["a", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "</s>"]
        assert report["text_offset"] == [0, 1, 1, 1, 2]
        assert all(value < 0 for value in report["token_logprobs"])
        assert [list(top) for top in report["top_logprobs"]] == [[one] for one in report["tokens"]]
        merged: dict[str, list[Any]] = {}
        for chunk in stream(client, PLAIN, body)[:-1]:
            for key, values in (chunk["choices"][0]["logprobs"] or {}).items():
                merged.setdefault(key, []).extend(values)
        assert merged == report


def test_chat_logprobs() -> None:
    tokenizer = byte_tokenizer()
    messages = [{"role": "user", "content": "x"}]
    prompt = len(tokenizer.encode_chat(messages, add_generation_prompt=True))
    with saying("a\u20ac", prompt=prompt) as client:
        body = {"messages": messages, "temperature": 0, "logprobs": True, "top_logprobs": 20}
        answer = client.post(CHAT, json={**body, "top_logprobs": 20}).json()
        (choice,) = answer["choices"]
        assert choice["message"]["content"] == "a\u20ac"
        assert answer["usage"]["prompt_tokens"] == prompt
        content = choice["logprobs"]["content"]
        assert b"".join(bytes(one["bytes"]) for one in content[:-1]).decode() == "a\u20ac"
        assert content[1]["token"] == "\\xe2"
        for one in content:
            assert len(one["top_logprobs"]) == 20
            assert one["top_logprobs"][0]["token"] == one["token"]
        chunks = stream(client, CHAT, body)[:-1]
        parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
        assert [one for part in parts if part for one in part["content"]] == content


def test_bias_forces_and_bans() -> None:
    with saying("abc") as client:
        assert both(client, logit_bias={"90": 100}, max_tokens=3)[:2] == ("ZZZ", "length")
        text, _, _ = both(client, logit_bias={"98": -100}, max_tokens=3)
        assert text[0] + text[2] == "ac"
        assert text[1] != "b"
