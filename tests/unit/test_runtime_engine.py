"""The engine with its threads: answers, ends, text, limits and counts."""

import random
import time
from typing import Any

import pytest
import torch

from quantkit.errors import ResourceError, UsageError
from quantkit.runtime.kv import KVSpec
from quantkit.runtime.request import RequestError, SamplingParams
from tests.helpers.engine_client import Client, running, wait_idle
from tests.helpers.fake_backend import (
    EOS,
    FakeConfig,
    FakeModel,
    alone,
    byte_tokenizer,
    fake_engine,
    scripted,
    scripted_logits,
)

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


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
    with running(model, **options) as engine:
        jobs = [(prompt, params) for prompt in prompts for params in kinds]
        rng.shuffle(jobs)
        clients = []
        for prompt, params in jobs:
            clients.append((Client(engine, prompt, params), prompt, params))
            time.sleep(rng.random() * 0.004)
        for client, prompt, params in clients:
            seed = params.seed or 0
            want, reason = alone(model, prompt, params, seed=seed, limit=engine.max_model_len)
            client.finish()
            assert client.last.error is None
            assert (client.tokens, client.last.finish_reason) == (want, reason)
        wait_idle(engine)
        assert engine.stats().preemptions > 0
        assert engine.stats().cached_tokens > 0


def test_without_a_seed_answers_vary() -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    with running() as engine:
        answers = {tuple(Client(engine, [1], params).finish().tokens) for _ in range(4)}
    assert len(answers) == 4


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16])
def test_the_same_prompt_again_and_again(length: int) -> None:
    """A full hit in the prefix cache leaves a token to compute; longer and shorter ones too."""
    model = FakeModel()
    prompt = [(7 * i) % 256 for i in range(length)]
    with running(model, block_size=8) as engine:
        for ids in [prompt] * 5 + [[*prompt, 3], prompt[: max(1, length - 1)]]:
            client = Client(engine, ids, GREEDY).finish()
            assert client.tokens == alone(model, ids, GREEDY)[0]
            assert client.last.num_cached_tokens < client.last.num_prompt_tokens == len(ids)
            assert client.last.num_output_tokens == 8
        again = Client(engine, prompt, GREEDY).finish()
        assert again.last.num_cached_tokens == (length - 1) // 8 * 8
        wait_idle(engine)


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
    with running(scripted("hello world")) as engine:
        client = Client(engine, [9], SamplingParams(temperature=0.0, **params)).finish()
        wait_idle(engine)
    assert client.text == text
    assert client.last.finish_reason == reason
    assert client.last.stop_reason == stop_reason
    assert client.last.num_output_tokens == count == len(client.tokens)
    assert client.last.num_prompt_tokens == 1
    assert all(output.finish_reason is None for output in client.outputs[:-1])
    assert [output.num_output_tokens for output in client.outputs] == list(range(1, count + 1))


def test_min_tokens_holds_the_end_off() -> None:
    always_end = FakeModel(logits=scripted_logits([EOS]))
    with running(always_end) as engine:
        params = SamplingParams(temperature=0.0, min_tokens=3)
        client = Client(engine, [9], params).finish()
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
    with running(scripted("ABCDEFG")) as engine:
        client = Client(engine, [9], SamplingParams(temperature=0.0, stop=stops)).finish()
    assert client.text == text
    shown = ""
    for output in client.outputs:
        shown += output.text
        assert text.startswith(shown)


@pytest.mark.parametrize("text", ["é", "😀", "👨‍👩‍👧‍👦", "한국"])
def test_characters_split_over_tokens(text: str) -> None:
    with running(scripted(text)) as engine:
        params = SamplingParams(temperature=0.0)
        clients = [Client(engine, [9], params) for _ in range(4)]
        for client in clients:
            assert client.finish().text == text
            assert client.last.num_output_tokens == len(text.encode()) + 1


# Limits


def test_what_can_never_fit_is_refused_at_once() -> None:
    config = FakeConfig(max_positions=256)
    with running(FakeModel(config), num_blocks=8, block_size=16) as engine:
        assert engine.max_model_len == 128
        with pytest.raises(RequestError, match="has 200 tokens, but the cache holds 128"):
            engine.submit([1] * 200, GREEDY, lambda output: None)
        with pytest.raises(RequestError, match="has 128 tokens"):
            engine.submit([1] * 128, GREEDY, lambda output: None)
        edge = Client(engine, [1] * 127, GREEDY).finish()
        assert (edge.last.finish_reason, len(edge.tokens)) == ("length", 1)
        assert Client(engine, [1] * 20, GREEDY).finish().last.finish_reason == "length"
        wait_idle(engine)


def test_max_tokens_is_cut_to_the_context() -> None:
    with running(max_model_len=64) as engine:
        params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
        assert len(Client(engine, [1] * 60, params).finish().tokens) == 4
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


# Counts


def test_stats_and_logprobs() -> None:
    tokenizer = byte_tokenizer()
    with running(tokenizer=tokenizer, block_size=4) as engine:
        params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=2)
        for _ in range(2):
            client = Client(engine, list(range(9)), params).finish()
        wait_idle(engine)
        stats = engine.stats()
    assert (stats.prompt_tokens, stats.cached_tokens, stats.output_tokens) == (18, 8, 8)
    assert stats.step_tokens == 9 + 3 + 1 + 3
    assert stats.finished == {"length": 2}
    for output in client.outputs:
        assert output.logprobs is not None
        (logprob,) = output.logprobs
        assert logprob.token_id == output.token_ids[0] == logprob.top[0][0]
        assert logprob.logprob == logprob.top[0][1] >= logprob.top[1][1]
