"""Who gets in: API keys, body sizes, a bounded queue, and a server that is not ready."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from quantkit.runtime.request import GenerationError, RequestError
from quantkit.server import create_app
from quantkit.server.app import build_app
from quantkit.server.limits import Admission
from quantkit.server.state import ServerState
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.serving import error_of, make_tokenizer, serving, wait_for

PLAIN = "/v1/completions"
KEYS = ("first-key", "second-k\u00e9y")


def make_app(engine: FakeEngine, **options: Any) -> Any:
    return create_app(engine, make_tokenizer(), model_name="t", max_model_len=64, **options)


@pytest.fixture(scope="module")
def locked() -> Iterator[httpx.Client]:
    with (
        FakeEngine(["a"]) as engine,
        serving(make_app(engine, api_keys=KEYS, max_body_bytes=1000)) as client,
    ):
        yield client


@pytest.mark.parametrize(
    "header",
    [None, "", "first-key", "Bearer", "Bearer wrong", "Basic first-key", "Bearer first-ke"],
)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/version", "/nothing", "/health/"])
def test_without_a_key(locked: httpx.Client, path: str, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    response = locked.get(path, headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    error = error_of(response)
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


@pytest.mark.parametrize("key", KEYS)
def test_with_a_key(locked: httpx.Client, key: str) -> None:
    headers = {"Authorization": b"Bearer " + key.encode()}
    for path in ("/v1/models", "/metrics", "/version"):
        assert locked.get(path, headers=headers).status_code == 200
    answer = locked.post(PLAIN, json={"prompt": "a"}, headers=headers)
    assert answer.json()["choices"][0]["text"] == "a"


def test_health_needs_no_key(locked: httpx.Client) -> None:
    assert locked.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize("chunked", [False, True])
def test_long_bodies(locked: httpx.Client, chunked: bool) -> None:
    body = b'{"prompt": "' + b"x" * 1000 + b'"}'
    headers = {"Authorization": "Bearer first-key", "Content-Type": "application/json"}
    content = iter([body[:600], body[600:]]) if chunked else body
    response = locked.post(PLAIN, content=content, headers=headers)
    assert response.status_code == 413
    assert "1000" in error_of(response)["message"]


def test_full_queue() -> None:
    """Two run, one waits, the fourth is told to come back, and places come free again."""
    with (
        FakeEngine(["x"] * 1000, pace=0.01) as engine,
        serving(make_app(engine, max_num_seqs=2, max_queue=1)) as client,
    ):
        body = {"prompt": [5], "n": 3, "max_tokens": 60, "stream": True}
        with client.stream("POST", PLAIN, json=body) as first:
            wait_for(lambda: len(engine.running) == 3)
            response = client.post(PLAIN, json={"prompt": [5]})
            assert response.status_code == 429
            assert 1 <= int(response.headers["retry-after"]) <= 60
            error = error_of(response)
            assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
            assert client.get("/health").status_code == 200
            first.close()
        wait_for(lambda: not engine.running)
        assert client.post(PLAIN, json={"prompt": [5]}).status_code == 200
        response = client.post(PLAIN, json={"prompt": [5], "n": 4})
        assert response.status_code == 400
        assert error_of(response)["param"] == "n"
        response = client.post(PLAIN, json={"prompt": ["a"] * 4})
        assert error_of(response)["param"] == "prompt"


def test_refused_requests_free_their_places() -> None:
    with FakeEngine(["x"]) as engine, serving(make_app(engine, max_queue=0)) as client:
        for _ in range(40):
            assert client.post(PLAIN, json={"prompt": [600]}).status_code == 400
        assert client.post(PLAIN, json={"prompt": [5], "n": 16}).status_code == 200


def test_second_sequence_refused_by_the_engine() -> None:
    """Nothing is left running when only a part of a request can be submitted."""
    refusal = RequestError("prompt: no", field="prompt")
    with FakeEngine(["x"] * 99, pace=0.05, refuse=refusal) as engine:
        with serving(make_app(engine)) as client:
            response = client.post(PLAIN, json={"prompt": [5], "n": 2, "stream": True})
        assert response.status_code == 400
        assert error_of(response)["param"] == "prompt"
        assert [request.was_aborted for request in engine.requests] == [True]


def test_stopped_engine() -> None:
    gone = GenerationError("the engine has stopped")
    with FakeEngine(["x"], refuse=gone) as engine, serving(make_app(engine)) as client:
        body = {"prompt": [5]}
        assert client.post(PLAIN, json=body).status_code == 200
        assert client.post(PLAIN, json=body).status_code == 503
        engine.is_running = False
        assert client.get("/health").status_code == 503


def test_not_ready() -> None:
    state = ServerState(1, 1)
    with serving(build_app(state)) as client:
        for response in (
            client.get("/health"),
            client.get("/v1/models"),
            client.post(PLAIN, json={"prompt": "a"}),
        ):
            assert response.status_code == 503
            assert error_of(response)["code"] == "loading"


def test_retry_after_follows_the_pace() -> None:
    admission = Admission(2, 2)
    assert admission.retry_after(1) == 1
    with admission.slots(4, "n"):
        assert admission.held == 4
    assert admission.held == 0
    admission._finished.clear()
    admission._finished.extend([-1e9, -1e9])
    assert admission.retry_after(1) == 60
