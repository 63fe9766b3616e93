"""An application on a free loopback port, and what tests do with it."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from quantkit.core.tokenizer import Tokenizer
from tests.helpers.tiny import TEMPLATE, tiny_tokenizer

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


@cache
def make_tokenizer(template: str | None = TEMPLATE) -> Tokenizer:
    """The tiny tokenizer with a chat template."""
    return Tokenizer(tiny_tokenizer(), settings=SETTINGS, template=template, eos_ids=(1, 4))


@contextmanager
def serving(app: FastAPI) -> Iterator[httpx.Client]:
    """A client of the application, which runs in a thread until the block ends."""
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    # With the protocol named, asyncio switches Nagle's delays off.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            with httpx.Client(base_url=address, timeout=20) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def serve_program(model: Path, **options: Any) -> Iterator[str]:
    """Address of a real server in a process of its own, which must end well."""
    code = (
        "import json, sys; from quantkit.server import serve; "
        "options = json.loads(sys.argv[2]); "
        "serve(sys.argv[1], port=0, ready=lambda at: print(at, flush=True), **options)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(model), json.dumps(options)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:")
            yield address
            process.send_signal(signal.SIGTERM)
            assert process.wait(100) == 0
        finally:
            if process.poll() is None:
                process.kill()


def wait_for(condition: Callable[[], Any], seconds: float = 5.0) -> float:
    """Wait until something holds and return the seconds it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "it did not happen in time"
        time.sleep(0.005)
    return time.monotonic() - start


def events(lines: Iterator[str]) -> list[Any]:
    """Documents of a stream of events; the end mark stays a string."""
    found: list[Any] = []
    for line in lines:
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
        else:
            assert not line or line.startswith(":"), f"not a line of events: {line!r}"
    return found


def stream(client: httpx.Client, path: str, body: dict[str, Any]) -> list[Any]:
    """The documents of a streamed answer."""
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        return events(response.iter_lines())


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of an answer, its shape checked."""
    document = response.json()
    assert set(document) == {"error"}, document
    error = document["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert isinstance(error["message"], str)
    assert error["message"]
    assert "\n" not in error["message"]
    return error
