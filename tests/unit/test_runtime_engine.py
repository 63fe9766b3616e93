"""The engine with its threads: answers, ends, text, limits, aborts, faults and counts."""

import queue
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from quantkit.errors import ResourceError, UsageError
from quantkit.runtime.engine import Engine
from quantkit.runtime.kv import KVSpec
from quantkit.runtime.request import GenerationError, Output, RequestError, SamplingParams
from tests.helpers.fake_backend import (
    EOS,
    FakeConfig,
    FakeModel,
    alone,
    byte_tokenizer,
    fake_engine,
    hashed_logits,
    scripted_logits,
)

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@contextmanager
def _running(model: FakeModel | None = None, **options: Any) -> Iterator[Engine]:
    engine = fake_engine(model, **options)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


class _Client:
    """Collects the outputs of one request."""

    def __init__(self, engine: Engine, prompt: Sequence[int], params: SamplingParams) -> None:
        self.outputs: list[Output] = []
        self._box: queue.SimpleQueue[Output] = queue.SimpleQueue()
        self.id = engine.submit(prompt, params, self._box.put)

    def next(self) -> Output:
        self.outputs.append(self._box.get(timeout=60))
        return self.outputs[-1]

    def finish(self) -> "_Client":
        while not self.next().is_last:
            pass
        assert self._box.empty()
        return self

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.outputs)

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    @property
    def last(self) -> Output:
        return self.outputs[-1]


def _idle(engine: Engine) -> None:
    """Wait until nothing runs."""
    deadline = time.monotonic() + 30
    while (stats := engine.stats()).running or stats.waiting:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    assert stats.free_blocks == stats.total_blocks


def _script(text: str | bytes) -> FakeModel:
    """A model that writes a text, from a prompt of one token on, and then ends."""
    data = text.encode() if isinstance(text, str) else text
    return FakeModel(logits=scripted_logits([*data, EOS]))


# Answers


def test_many_at_once_give_what_each_gives_alone() -> None:
    model = FakeModel()
    rng = random.Random(0)
    kinds = [
        SamplingParams(temperature=0.0, max_tokens=20),
        SamplingParams(seed=1, max_tokens=20),
        SamplingParams(seed=2, top_p=0.9, presence_penalty=1.0, max_tokens=20),
    ]
    stem = [rng.randrange(256) for _ in range(20)]
    prompts = [stem[: 5 * (i % 4)] + [i] * (1 + 3 * (i % 3)) for i in range(12)]
    options = {"max_num_seqs": 5, "num_blocks": 24, "block_size": 4, "max_num_batched_tokens": 9}
    with _running(model, **options) as engine:
        jobs = [(prompt, params) for prompt in prompts for params in kinds]
        rng.shuffle(jobs)
        clients = []
        for prompt, params in jobs:
            clients.append((_Client(engine, prompt, params), prompt, params))
            time.sleep(rng.random() * 0.004)
        for client, prompt, params in clients:
            seed = params.seed or 0
            want, reason = alone(model, prompt, params, seed=seed, limit=engine.max_model_len)
            client.finish()
            assert client.last.error is None
            assert (client.tokens, client.last.finish_reason) == (want, reason)
        _idle(engine)
        assert engine.stats().preemptions > 0
        assert engine.stats().cached_tokens > 0


def test_without_a_seed_answers_vary() -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    with _running() as engine:
        answers = {tuple(_Client(engine, [1], params).finish().tokens) for _ in range(4)}
    assert len(answers) == 4


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16])
def test_the_same_prompt_again_and_again(length: int) -> None:
    """A full hit in the prefix cache leaves a token to compute; longer and shorter ones too."""
    model = FakeModel()
    prompt = [(7 * i) % 256 for i in range(length)]
    with _running(model, block_size=8) as engine:
        for ids in [prompt] * 5 + [[*prompt, 3], prompt[: max(1, length - 1)]]:
            client = _Client(engine, ids, GREEDY).finish()
            assert client.tokens == alone(model, ids, GREEDY)[0]
            assert client.last.num_cached_tokens < client.last.num_prompt_tokens == len(ids)
            assert client.last.num_output_tokens == 8
        again = _Client(engine, prompt, GREEDY).finish()
        assert again.last.num_cached_tokens == (length - 1) // 8 * 8
        _idle(engine)


# Ends


@pytest.mark.parametrize(
    ("params", "text", "count", "reason", "stop_reason"),
    [
        ({}, "hello world", 12, "stop", None),
        ({"max_tokens": 4}, "hell", 4, "length", None),
        ({"max_tokens": 12}, "hello world", 12, "stop", None),
        ({"stop": "wor"}, "hello ", 9, "stop", "wor"),
        ({"stop": "o", "max_tokens": 5}, "hell", 5, "stop", "o"),
        ({"stop": ["hello world"]}, "", 11, "stop", "hello world"),
        ({"stop": "worldX"}, "hello world", 12, "stop", None),
        ({"stop": "worldX", "max_tokens": 10}, "hello worl", 10, "length", None),
        ({"stop_token_ids": [ord("o")]}, "hell", 5, "stop", ord("o")),
        ({"stop": "l", "min_tokens": 6}, "hello wor", 10, "stop", "l"),
        ({"ignore_eos": True, "max_tokens": 14}, "hello worldhe", 14, "length", None),
    ],
)
def test_ends(
    params: dict[str, Any], text: str, count: int, reason: str, stop_reason: str | int | None
) -> None:
    with _running(_script("hello world")) as engine:
        client = _Client(engine, [9], SamplingParams(temperature=0.0, **params)).finish()
        _idle(engine)
    assert client.text == text
    assert client.last.finish_reason == reason
    assert client.last.stop_reason == stop_reason
    assert client.last.num_output_tokens == count == len(client.tokens)
    assert client.last.num_prompt_tokens == 1
    assert all(output.finish_reason is None for output in client.outputs[:-1])
    assert [output.num_output_tokens for output in client.outputs] == list(range(1, count + 1))


def test_min_tokens_holds_the_end_off() -> None:
    always_end = FakeModel(logits=scripted_logits([EOS]))
    with _running(always_end) as engine:
        params = SamplingParams(temperature=0.0, min_tokens=3)
        client = _Client(engine, [9], params).finish()
    assert client.tokens == [0, 0, 0, EOS]  # all others are equally likely: the lowest id


@pytest.mark.parametrize(
    ("stops", "text"),
    [
        (["DEFG"], "ABC"),
        (["CD"], "AB"),
        (["G"], "ABCDEF"),
        (["DEX", "EF"], "ABCD"),
        (["FGH"], "ABCDEFG"),
    ],
)
def test_stop_strings_never_leak(stops: list[str], text: str) -> None:
    with _running(_script("ABCDEFG")) as engine:
        client = _Client(engine, [9], SamplingParams(temperature=0.0, stop=stops)).finish()
    assert client.text == text
    shown = ""
    for output in client.outputs:
        shown += output.text
        assert text.startswith(shown)


@pytest.mark.parametrize("text", ["é", "😀", "👨‍👩‍👧‍👦", "한국"])
def test_characters_split_over_tokens(text: str) -> None:
    with _running(_script(text)) as engine:
        params = SamplingParams(temperature=0.0)
        clients = [_Client(engine, [9], params) for _ in range(4)]
        for client in clients:
            assert client.finish().text == text
            assert client.last.num_output_tokens == len(text.encode()) + 1


# Limits


def test_what_can_never_fit_is_refused_at_once() -> None:
    config = FakeConfig(max_positions=256)
    with _running(FakeModel(config), num_blocks=8, block_size=16) as engine:
        assert engine.max_model_len == 128
        with pytest.raises(RequestError, match="has 200 tokens, but the cache holds 128"):
            engine.submit([1] * 200, GREEDY, lambda output: None)
        with pytest.raises(RequestError, match="has 128 tokens"):
            engine.submit([1] * 128, GREEDY, lambda output: None)
        edge = _Client(engine, [1] * 127, GREEDY).finish()
        assert (edge.last.finish_reason, len(edge.tokens)) == ("length", 1)
        assert _Client(engine, [1] * 20, GREEDY).finish().last.finish_reason == "length"
        _idle(engine)


def test_max_tokens_is_cut_to_the_context() -> None:
    with _running(max_model_len=64) as engine:
        params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
        assert len(_Client(engine, [1] * 60, params).finish().tokens) == 4
        with pytest.raises(RequestError, match="64 tokens, but the context holds 64"):
            engine.submit([1] * 64, GREEDY, lambda output: None)


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [
        ([], {}, "prompt"),
        ([1, 260], {}, "prompt"),
        ([-1], {}, "prompt"),
        (["a"], {}, "prompt"),
        ([1], {"logit_bias": {260: 1.0}}, "logit_bias"),
        ([1], {"stop_token_ids": [300]}, "stop_token_ids"),
    ],
)
def test_refused(prompt: list[Any], params: dict[str, Any], field: str) -> None:
    engine = fake_engine()
    with pytest.raises(RequestError) as caught:
        engine.submit(prompt, SamplingParams(**params), lambda output: None)
    assert caught.value.field == field
    engine.stop()


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": 0},
        {"num_blocks": 0},
        {"block_size": -1},
        {"max_model_len": 1},
        {"max_model_len": 257},
        {"max_num_batched_tokens": 0},
    ],
)
def test_sizes_that_cannot_be_meant(options: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        fake_engine(**options)


def test_the_cache_takes_what_is_needed_and_no_more_than_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert fake_engine(max_num_seqs=3, max_model_len=50, block_size=16).num_blocks == 3 * 4
    spec = KVSpec(1, 1, 1, 16, torch.float32, torch.device("cpu"))
    monkeypatch.setattr(
        "quantkit.runtime.engine.available_bytes", lambda device: 16 * spec.bytes_per_token * 6
    )
    engine = fake_engine(max_num_seqs=3)
    assert (engine.num_blocks, engine.max_model_len) == (5, 80)
    with pytest.raises(ResourceError, match="the cache for 100 tokens takes 0 MiB"):
        fake_engine(max_model_len=100)


# Aborts and ends of the engine


def test_abort_in_every_state() -> None:
    model = FakeModel(delay=0.005)
    long = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    options = {"max_num_seqs": 2, "num_blocks": 64, "block_size": 4, "max_num_batched_tokens": 4}
    with _running(model, **options) as engine:
        generating = _Client(engine, [1], long)
        generating.next()
        computing_its_prompt = _Client(engine, [2] * 50, long)
        waiting = _Client(engine, [3], long)
        time.sleep(0.02)
        for client in (waiting, computing_its_prompt, generating):
            steps = engine.stats().steps
            engine.abort(client.id)
            client.finish()
            assert client.last.finish_reason == "abort"
            assert engine.stats().steps <= steps + 2
        at_once = _Client(engine, [4], long)
        engine.abort(at_once.id)
        assert at_once.finish().last.finish_reason == "abort"
        engine.abort(at_once.id)
        engine.abort("unknown")
        assert len(_Client(engine, [5], GREEDY).finish().tokens) == 8
        _idle(engine)
        assert engine.stats().finished == {"abort": 4, "length": 1}


def test_a_stop_string_ends_the_computation_too() -> None:
    model = FakeModel(logits=scripted_logits([ord("x")]), delay=0.002)
    with _running(model) as engine:
        params = SamplingParams(temperature=0.0, stop="xxx")
        assert _Client(engine, [1], params).finish().last.num_output_tokens == 3
        _idle(engine)
        assert engine.stats().steps < 20


def test_stopping_delivers_what_is_due() -> None:
    engine = fake_engine(FakeModel(delay=0.002))
    engine.start()
    assert engine.is_running
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    clients = [_Client(engine, [i], params) for i in range(3)]
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
    client = _Client(engine, [1], GREEDY)
    engine.stop()
    assert client.finish().last.finish_reason == "abort"


# Faults


def test_a_failing_step_fails_its_requests_only() -> None:
    steps: list[int] = []

    def before(step: object) -> None:
        steps.append(1)
        if len(steps) == 3:
            raise RuntimeError("kernel broke\nat length")

    with _running(FakeModel(before=before), max_num_seqs=2) as engine:
        first = _Client(engine, [1], GREEDY)
        assert first.finish().last.error == "RuntimeError: kernel broke"
        assert len(_Client(engine, [2], GREEDY).finish().tokens) == 8
        _idle(engine)
        assert engine.stats().finished == {"error": 1, "length": 1}


def test_a_fault_inside_one_request_ends_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from quantkit.runtime import sampler

    def broken(x: Tensor, row: sampler.Row) -> None:
        if row.params.logit_bias.get(7):
            raise IndexError("injected")

    monkeypatch.setattr(sampler, "_bias", broken)
    bad = SamplingParams(temperature=0.0, max_tokens=8, logit_bias={7: 1.0})
    with _running(FakeModel(delay=0.002)) as engine:
        good = [_Client(engine, [i], GREEDY) for i in range(3)]
        assert _Client(engine, [9], bad).finish().last.error == "IndexError: injected"
        for client in good:
            assert len(client.finish().tokens) == 8
        _idle(engine)


def test_logits_that_are_not_numbers_do_not_reach_the_prefix_cache() -> None:
    poisoned = [True]

    def logits(history: Sequence[int], vocab: int) -> Tensor:
        return torch.full((vocab,), torch.nan) if poisoned[0] else hashed_logits(history, vocab)

    with _running(FakeModel(logits=logits), block_size=2) as engine:
        error = _Client(engine, [1, 2, 3, 4, 5], GREEDY).finish().last.error
        assert error == "the model's best logit is nan"
        poisoned[0] = False
        again = _Client(engine, [1, 2, 3, 4, 5], GREEDY).finish()
        assert again.last.num_cached_tokens == 0
        assert len(again.tokens) == 8


def test_a_fault_of_the_scheduler_starts_from_an_empty_cache() -> None:
    with _running(FakeModel(delay=0.002)) as engine:
        client = _Client(engine, [1], GREEDY)
        client.next()
        engine._loop.scheduler.running.append(None)  # type: ignore[arg-type]
        assert client.finish().last.error is not None
        assert len(_Client(engine, [2], GREEDY).finish().tokens) == 8
        _idle(engine)


def test_a_client_that_raises_harms_nobody() -> None:
    def broken(output: Output) -> None:
        raise ValueError("client")

    with _running(FakeModel(delay=0.001)) as engine:
        good = _Client(engine, [1], GREEDY)
        engine.submit([2], SamplingParams(max_tokens=100, ignore_eos=True), broken)
        assert len(good.finish().tokens) == 8
        _idle(engine)
        assert engine.stats().finished == {"abort": 1, "length": 1}


def test_text_that_cannot_be_decoded_fails_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from quantkit.runtime.text.detokenize import Detokenizer

    push = Detokenizer.push

    def broken(self: Detokenizer, token_id: int) -> str:
        if token_id == ord("!"):
            raise KeyError("injected")
        return push(self, token_id)

    monkeypatch.setattr(Detokenizer, "push", broken)
    with _running(_script("ab!c")) as engine:
        client = _Client(engine, [1], SamplingParams(temperature=0.0)).finish()
        assert client.last.error == "text of the request failed: KeyError"
        assert client.text == "ab"
        _idle(engine)


def test_the_loop_does_not_wait_for_a_client() -> None:
    """While one callback hangs, steps go on; its outputs wait for it."""
    gate = threading.Event()
    with _running() as engine:
        engine.submit([1], GREEDY, lambda output: gate.wait(30))
        engine.submit([2], SamplingParams(max_tokens=50, ignore_eos=True), lambda output: None)
        deadline = time.monotonic() + 30
        while engine.stats().running or engine.stats().steps < 50:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        assert engine.stats().output_tokens < 58
        gate.set()


# Counts


def test_stats_and_logprobs() -> None:
    tokenizer = byte_tokenizer()
    with _running(tokenizer=tokenizer, block_size=4) as engine:
        params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=2)
        for _ in range(2):
            client = _Client(engine, list(range(9)), params).finish()
        _idle(engine)
        stats = engine.stats()
    assert (stats.prompt_tokens, stats.cached_tokens, stats.output_tokens) == (18, 8, 8)
    assert stats.step_tokens == 9 + 3 + 1 + 3
    assert stats.finished == {"length": 2}
    for output in client.outputs:
        assert output.logprobs is not None
        (logprob,) = output.logprobs
        assert logprob.token_id == output.token_ids[0] == logprob.top[0][0]
        assert logprob.logprob == logprob.top[0][1] >= logprob.top[1][1]
