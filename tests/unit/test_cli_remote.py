"""The client of `quantkit chat URL`, against a scripted server."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from quantkit.cli.remote import RemoteChat
from quantkit.errors import DataError, ResourceError, UsageError
from tests.helpers.scripted_server import Script, delta, events, scripted_server

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    with scripted_server(script) as address:
        yield address


def ask(url: str, **settings: Any) -> list[tuple[str, str | None]]:
    chat = RemoteChat(url, **settings)
    try:
        return list(chat.stream(MESSAGES, {"max_tokens": 5}))
    finally:
        chat.close()


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_stream(url: str, script: Script, suffix: str) -> None:
    script.answer = ": comment\n\n" + events(
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        delta("Hel"),
        delta("lo"),
        delta(None, "stop"),
        {"choices": [], "usage": {"total_tokens": 3}},
        "[DONE]",
    )
    pieces = ask(url + suffix, api_key="key")
    assert "".join(text for text, _ in pieces) == "Hello"
    assert pieces[-1] == ("", "stop")
    expected = {"model": "tiny", "messages": MESSAGES, "stream": True, "max_tokens": 5}
    assert script.asked == [expected]
    assert script.keys == ["Bearer key"]


def test_named_model(url: str, script: Script) -> None:
    script.answer = events(delta("x", "stop"))
    ask(url, model="other")
    assert script.asked[0]["model"] == "other"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, UsageError),
        (401, UsageError),
        (404, UsageError),
        (429, ResourceError),
        (503, ResourceError),
    ],
)
def test_refusals(url: str, script: Script, status: int, kind: type[Exception]) -> None:
    script.status = status
    script.answer = json.dumps({"error": {"message": "because of this", "type": "x"}})
    with pytest.raises(kind, match=f"answered {status}: because of this"):
        ask(url)


def test_refusal_without_json(url: str, script: Script) -> None:
    script.status, script.answer = 502, "<html>"
    with pytest.raises(ResourceError, match="502: Bad Gateway"):
        ask(url)


def test_error_in_the_stream(url: str, script: Script) -> None:
    script.answer = events(delta("Hel"), {"error": {"message": "it broke"}})
    with pytest.raises(ResourceError, match="it broke"):
        ask(url)


@pytest.mark.parametrize("event", ["not json", "[]", '{"choices": [{}]}', '{"choices": 3}'])
def test_events_that_make_no_sense(url: str, script: Script, event: str) -> None:
    script.answer = events(event)
    with pytest.raises(DataError, match="not understood"):
        ask(url)


@pytest.mark.parametrize("models", [{}, {"data": []}, [], {"data": [{}]}])
def test_an_address_of_something_else(url: str, script: Script, models: Any) -> None:
    script.models = models
    with pytest.raises(DataError, match="does not list a model"):
        ask(url)


def test_nobody_there() -> None:
    with pytest.raises(ResourceError, match="cannot talk to") as caught:
        ask("http://127.0.0.1:9")
    assert "quantkit serve" in (caught.value.hint or "")
