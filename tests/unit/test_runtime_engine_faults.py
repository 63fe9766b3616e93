"""The engine under aborts, stops and faults: who ends, who goes on, what comes back."""

import threading
import time
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from quantkit.runtime.request import GenerationError, Output, SamplingParams
from tests.helpers.engine_client import Client, running, wait_idle
from tests.helpers.fake_backend import (
    FakeModel,
    fake_engine,
    hashed_logits,
    scripted,
    scripted_logits,
)

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def test_abort_in_every_state() -> None:
    model = FakeModel(delay=0.005)
    long = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    options = {"max_num_seqs": 2, "num_blocks": 64, "block_size": 4, "max_num_batched_tokens": 4}
    with running(model, **options) as engine:
        generating = Client(engine, [1], long)
        generating.next()
        computing_its_prompt = Client(engine, [2] * 50, long)
        waiting = Client(engine, [3], long)
        time.sleep(0.02)
        for client in (waiting, computing_its_prompt, generating):
            steps = engine.stats().steps
            engine.abort(client.id)
            client.finish()
            assert client.last.finish_reason == "abort"
            assert engine.stats().steps <= steps + 2
        at_once = Client(engine, [4], long)
        engine.abort(at_once.id)
        assert at_once.finish().last.finish_reason == "abort"
        engine.abort(at_once.id)
        engine.abort("unknown")
        assert len(Client(engine, [5], GREEDY).finish().tokens) == 8
        wait_idle(engine)
        assert engine.stats().finished == {"abort": 4, "length": 1}


def test_a_stop_string_ends_the_computation_too() -> None:
    model = FakeModel(logits=scripted_logits([ord("x")]), delay=0.002)
    with running(model) as engine:
        params = SamplingParams(temperature=0.0, stop="xxx")
        assert Client(engine, [1], params).finish().last.num_output_tokens == 3
        wait_idle(engine)
        assert engine.stats().steps < 20


def test_stopping_delivers_what_is_due() -> None:
    engine = fake_engine(FakeModel(delay=0.002))
    engine.start()
    assert engine.is_running
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    clients = [Client(engine, [i], params) for i in range(3)]
    clients[0].next()
    engine.stop()
    assert not engine.is_running
    for client in clients:
        assert client.finish().last.finish_reason == "abort"
    with pytest.raises(GenerationError, match="stopped"):
        engine.submit([1], GREEDY, lambda output: None)
    engine.stop()


def test_stopping_an_engine_that_never_started() -> None:
    engine = fake_engine()
    client = Client(engine, [1], GREEDY)
    engine.stop()
    assert client.finish().last.finish_reason == "abort"


def test_a_failing_step_fails_its_requests_only() -> None:
    steps: list[int] = []

    def before(step: object) -> None:
        steps.append(1)
        if len(steps) == 3:
            raise RuntimeError("kernel broke\nat length")

    with running(FakeModel(before=before), max_num_seqs=2) as engine:
        first = Client(engine, [1], GREEDY)
        assert first.finish().last.error == "RuntimeError: kernel broke"
        assert len(Client(engine, [2], GREEDY).finish().tokens) == 8
        wait_idle(engine)
        assert engine.stats().finished == {"error": 1, "length": 1}


def test_a_fault_inside_one_request_ends_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from quantkit.runtime import sampler

    def broken(x: Tensor, row: sampler.Row) -> None:
        if row.params.logit_bias.get(7):
            raise IndexError("injected")

    monkeypatch.setattr(sampler, "_bias", broken)
    bad = SamplingParams(temperature=0.0, max_tokens=8, logit_bias={7: 1.0})
    with running(FakeModel(delay=0.002)) as engine:
        good = [Client(engine, [i], GREEDY) for i in range(3)]
        assert Client(engine, [9], bad).finish().last.error == "IndexError: injected"
        for client in good:
            assert len(client.finish().tokens) == 8
        wait_idle(engine)


def test_logits_that_are_not_numbers_do_not_reach_the_prefix_cache() -> None:
    poisoned = [True]

    def logits(history: Sequence[int], vocab: int) -> Tensor:
        return torch.full((vocab,), torch.nan) if poisoned[0] else hashed_logits(history, vocab)

    with running(FakeModel(logits=logits), block_size=2) as engine:
        error = Client(engine, [1, 2, 3, 4, 5], GREEDY).finish().last.error
        assert error == "the model's best logit is nan"
        poisoned[0] = False
        again = Client(engine, [1, 2, 3, 4, 5], GREEDY).finish()
        assert again.last.num_cached_tokens == 0
        assert len(again.tokens) == 8


def test_a_fault_of_the_scheduler_starts_from_an_empty_cache() -> None:
    with running(FakeModel(delay=0.002)) as engine:
        client = Client(engine, [1], GREEDY)
        client.next()
        engine._loop.scheduler.running.append(None)  # type: ignore[arg-type]
        assert client.finish().last.error is not None
        assert len(Client(engine, [2], GREEDY).finish().tokens) == 8
        wait_idle(engine)


def test_a_client_that_raises_harms_nobody() -> None:
    def broken(output: Output) -> None:
        raise ValueError("client")

    with running(FakeModel(delay=0.001)) as engine:
        good = Client(engine, [1], GREEDY)
        engine.submit([2], SamplingParams(max_tokens=100, ignore_eos=True), broken)
        assert len(good.finish().tokens) == 8
        wait_idle(engine)
        assert engine.stats().finished == {"abort": 1, "length": 1}


def test_text_that_cannot_be_decoded_fails_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from quantkit.runtime.text.detokenize import Detokenizer

    push = Detokenizer.push

    def broken(self: Detokenizer, token_id: int) -> str:
        if token_id == ord("!"):
            raise KeyError("injected")
        return push(self, token_id)

    monkeypatch.setattr(Detokenizer, "push", broken)
    with running(scripted("ab!c")) as engine:
        client = Client(engine, [1], SamplingParams(temperature=0.0)).finish()
        assert client.last.error == "text of the request failed: KeyError"
        assert client.text == "ab"
        wait_idle(engine)


def test_the_loop_does_not_wait_for_a_client() -> None:
    """While one callback hangs, steps go on; its outputs wait for it."""
    gate = threading.Event()
    with running() as engine:
        engine.submit([1], GREEDY, lambda output: gate.wait(30))
        engine.submit([2], SamplingParams(max_tokens=50, ignore_eos=True), lambda output: None)
        deadline = time.monotonic() + 30
        while engine.stats().running or engine.stats().steps < 50:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        assert engine.stats().output_tokens < 58
        gate.set()
