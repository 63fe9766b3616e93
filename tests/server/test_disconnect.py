"""A client that goes away takes its sequences along, whatever they were doing."""

import json
import socket
import time
from typing import Any

import httpx
import pytest

from quantkit.server import create_app
from tests.helpers.fake_backend import FakeModel, byte_tokenizer, fake_engine
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.serving import make_tokenizer, serving, wait_for

PLAIN = "/v1/completions"


def send(client: httpx.Client, body: str) -> socket.socket:
    """A request on a socket of its own, sent and not read."""
    address = (client.base_url.host, client.base_url.port)
    connection = socket.create_connection(address)
    head = f"POST {PLAIN} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return connection


@pytest.mark.parametrize("streamed", ["true", "false"])
def test_aborted_within_a_step(streamed: str) -> None:
    with FakeEngine(["x"] * 10_000, pace=0.01) as engine:
        app = create_app(engine, make_tokenizer(), model_name="t", max_model_len=9_000)
        with serving(app) as client:
            body = f'{{"prompt": [5], "n": 2, "max_tokens": 8000, "stream": {streamed}}}'
            connection = send(client, body)
            wait_for(lambda: len(engine.running) == 2 and engine.running[0].said > 3)
            connection.close()
            assert wait_for(lambda: not engine.running) < 1.0
            assert all(request.was_aborted for request in engine.requests)
            said = [request.said for request in engine.requests]
            time.sleep(0.05)
            assert said == [request.said for request in engine.requests]


def test_slots_and_blocks_come_back() -> None:
    """Two slots, six clients that leave while running or waiting, then a normal request."""
    model = FakeModel(delay=0.005)
    engine = fake_engine(model, max_num_seqs=2, max_model_len=256, block_size=16)
    engine.start()
    try:
        options: dict[str, Any] = {"model_name": "t", "max_model_len": engine.max_model_len}
        with serving(create_app(engine, byte_tokenizer(), **options, vocab_size=256)) as client:
            free = engine.stats().free_blocks
            for turn in range(6):
                fields = {"prompt": "ab", "max_tokens": 250, "ignore_eos": True}
                body = json.dumps({**fields, "stream": turn % 2 == 1})
                first, second, third = (send(client, body) for _ in range(3))
                wait_for(lambda: engine.stats().running == 2 and engine.stats().waiting == 1)
                for connection in (third, first, second):
                    connection.close()
                assert wait_for(lambda: not engine.stats().running + engine.stats().waiting) < 2.0
                assert engine.stats().free_blocks == free
            start = time.monotonic()
            answer = client.post(PLAIN, json={"prompt": "ab", "max_tokens": 3, "ignore_eos": True})
            assert answer.json()["usage"]["completion_tokens"] == 3
            assert time.monotonic() - start < 2.0
            assert engine.stats().finished["abort"] == 18
            metrics = client.get("/metrics").text.splitlines()
            ended = 'quantkit:request_success_total{finished_reason="%s",model_name="t"} %s'
            assert ended % ("abort", "18.0") in metrics
            assert ended % ("length", "1.0") in metrics
            assert 'quantkit:num_requests_running{model_name="t"} 0.0' in metrics
            assert 'quantkit:kv_cache_usage_perc{model_name="t"} 0.0' in metrics
    finally:
        engine.stop()
