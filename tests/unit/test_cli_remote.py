"""The client of `quantkit chat URL`, against a scripted server."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from quantkit.cli.remote import RemoteChat
from quantkit.errors import DataError, ResourceError, UsageError

MESSAGES = [{"role": "user", "content": "Hi"}]


class Script:
    """What the server answers, and what it was asked."""

    def __init__(self) -> None:
        self.models: Any = {"data": [{"id": "tiny"}]}
        self.status = 200
        self.answer = ""
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, "application/json", json.dumps(script.models))

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            script.asked.append(json.loads(self.rfile.read(length)))
            script.keys.append(self.headers["Authorization"])
            self._send(script.status, "text/event-stream", script.answer)

        def _send(self, status: int, kind: str, body: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def events(*items: object) -> str:
    lines = [f"data: {item if isinstance(item, str) else json.dumps(item)}\n\n" for item in items]
    return "".join(lines)


def delta(text: str | None, finish: str | None = None) -> dict[str, Any]:
    content = {} if text is None else {"content": text}
    return {"choices": [{"index": 0, "delta": content, "finish_reason": finish}]}


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
