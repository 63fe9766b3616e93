"""A server that answers chat requests with what a test wrote down."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Script:
    """What the server answers, and what it was asked."""

    def __init__(self) -> None:
        self.models: Any = {"data": [{"id": "tiny"}]}
        self.status = 200
        self.answer = ""
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []


def events(*items: object) -> str:
    """Server-sent events, from texts and JSON values."""
    lines = [f"data: {item if isinstance(item, str) else json.dumps(item)}\n\n" for item in items]
    return "".join(lines)


def delta(text: str | None, finish: str | None = None) -> dict[str, Any]:
    """One chunk of a streamed answer."""
    content = {} if text is None else {"content": text}
    return {"choices": [{"index": 0, "delta": content, "finish_reason": finish}]}


@contextlib.contextmanager
def scripted_server(script: Script) -> Iterator[str]:
    """Serve a script; gives the address."""

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
