"""serve() as a program: ready when loaded, draining on one signal, gone on the second."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from quantkit.errors import ResourceError, UsageError
from quantkit.server import serve
from tests.helpers.serving import error_of, events, wait_for

ROOT = Path(__file__).resolve().parents[2]
# No certificates to load: loading them takes longer than most of these tests.
HTTP = httpx.Client(verify=False, timeout=60)
STREAM = {"prompt": [5], "max_tokens": 90_000, "stream": True}


@pytest.fixture(scope="module", autouse=True)
def _close() -> Iterator[None]:
    yield
    HTTP.close()


@contextlib.contextmanager
def program(**options: Any) -> Iterator[subprocess.Popen[str]]:
    """``serve`` in a process of its own."""
    options.setdefault("port", 0)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.serve_fake", json.dumps(options)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def health(port: int) -> httpx.Response | None:
    """The answer of a server that may not listen yet."""
    with contextlib.suppress(httpx.ConnectError):
        return HTTP.get(f"http://127.0.0.1:{port}/health")
    return None


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def read_stream(address: str, found: list[Any], ready: threading.Event) -> None:
    with HTTP.stream("POST", f"{address}/v1/completions", json=STREAM) as response:
        lines = response.iter_lines()
        found.append(json.loads(next(lines).removeprefix("data: ")))
        ready.set()
        found.extend(events(lines))


def open_streams(address: str, count: int) -> tuple[list[list[Any]], list[threading.Thread]]:
    """Streams that have begun, and what they have read when their threads end."""
    found: list[list[Any]] = [[] for _ in range(count)]
    ready = [threading.Event() for _ in range(count)]
    threads = [
        threading.Thread(target=read_stream, args=(address, one, flag))
        for one, flag in zip(found, ready, strict=True)
    ]
    for thread in threads:
        thread.start()
    for flag in ready:
        assert flag.wait(60)
    return found, threads


def test_not_ready_while_loading() -> None:
    port = free_port()
    with program(port=port, load_seconds=1.5) as process:
        wait_for(lambda: health(port), 60)
        response = health(port)
        assert response is not None
        assert response.status_code == 503
        assert error_of(response)["code"] == "loading"
        assert address_of(process) == f"http://127.0.0.1:{port}"
        response = health(port)
        assert response is not None
        assert response.json() == {"status": "ok"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    with socket.create_server(("127.0.0.1", port)):  # free again at once
        pass


def test_streams_finish_after_the_first_signal() -> None:
    with program(says="x", times=30, pace=0.05, shutdown_timeout=60) as process:
        address = address_of(process)
        found, threads = open_streams(address, 3)
        process.send_signal(signal.SIGINT)
        wait_for(lambda: HTTP.get(f"{address}/health").status_code == 503, 60)
        refused = HTTP.post(f"{address}/v1/completions", json=STREAM)
        assert refused.status_code == 503
        assert error_of(refused)["code"] == "shutting_down"
        assert "retry-after" in refused.headers
        for thread in threads:
            thread.join()
        assert process.wait(60) == 0
    for one in found:
        assert one[-1] == "[DONE]"
        assert "".join(event["choices"][0]["text"] for event in one[:-1]) == "x" * 30


def test_streams_end_with_an_error_after_the_time_limit() -> None:
    with program(says="x" * 5_000, times=90_000, pace=0.001, shutdown_timeout=0.5) as process:
        address = address_of(process)
        found, threads = open_streams(address, 2)
        with HTTP.stream("POST", f"{address}/v1/completions", json=STREAM):
            time.sleep(0.3)  # this one is not read, and its buffers fill
            start = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert time.monotonic() - start < 15
        for thread in threads:
            thread.join()
    for one in found:
        assert one[-1]["error"]["code"] == "shutting_down"
        assert "[DONE]" not in one


def test_second_signal_ends_at_once() -> None:
    with program(says="x", times=90_000, pace=0.05, shutdown_timeout=60) as process:
        address = address_of(process)
        with HTTP.stream("POST", f"{address}/v1/completions", json=STREAM):
            process.send_signal(signal.SIGINT)
            wait_for(lambda: HTTP.get(f"{address}/health").status_code == 503, 60)
            start = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            assert time.monotonic() - start < 10


def test_signal_while_loading() -> None:
    port = free_port()
    with program(port=port, load_seconds=60) as process:
        wait_for(lambda: health(port), 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_model_that_does_not_load() -> None:
    with program(model="broken") as process:
        _, narration = process.communicate(timeout=60)
        assert process.returncode == 3
        assert "broken: no such model" in narration


def test_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ResourceError, match=rf"127\.0\.0\.1 port {port}") as caught:
            serve("anything", port=port)
    assert caught.value.exit_code == 4
    assert caught.value.hint


@pytest.mark.parametrize(
    "options",
    [
        {"port": 99_999},
        {"port": -1},
        {"host": "no.such.host.invalid"},
        {"max_num_seqs": 0},
        {"max_queue": -1},
        {"api_keys": [""]},
        {"shutdown_timeout": -1},
        {"chat_template": "missing.jinja"},
    ],
    ids=str,
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        serve("anything", **options)
