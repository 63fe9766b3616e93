"""The processed distribution against transformers and exact values, its limits, and the draws."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from quantkit.runtime.request import GenerationError, SamplingParams
from quantkit.runtime.rng import Purpose, philox, uniform
from quantkit.runtime.sampler import Choice, Row, choose, draw, largest, process

VOCAB = 50


def _row(
    seed: int = 0, history: tuple[int, ...] = (1, 2), num_prompt: int = 1, **values: Any
) -> Row:
    return Row(SamplingParams(**values), seed, history, num_prompt)


def _logits(seed: int = 0, vocab: int = VOCAB, std: float = 3.0) -> Tensor:
    return std * torch.randn(vocab, generator=torch.Generator().manual_seed(seed))


def _probabilities(logits: Tensor, row: Row) -> Tensor:
    return process(logits[None], [row])[0].double().exp()


def _token(logits: Tensor, row: Row) -> int:
    (choice,) = choose(logits[None], [row])
    assert isinstance(choice, Choice), choice
    return choice.token_id


@pytest.mark.parametrize("temperature", [0.3, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 7, 1000])
@pytest.mark.parametrize("top_p", [0.05, 0.9, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.05])
def test_filters_equal_those_of_transformers(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    warpers = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.3)])
    warpers.append(TemperatureLogitsWarper(temperature))
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    if min_p:
        warpers.append(MinPLogitsWarper(min_p))
    history = (3, 9, 9, 20)
    row = _row(
        history=history, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=1.3,
    )  # fmt: skip
    for seed in range(3):
        logits = _logits(seed)
        want = torch.softmax(warpers(torch.tensor([history]), logits[None].double())[0], -1)
        got = _probabilities(logits, row)
        assert float((got - want).abs().max()) < 1e-5


def test_a_large_vocabulary_takes_the_same_nucleus() -> None:
    """The short way through the first candidates and the full sort agree."""
    for std, top_p in ((6.0, 0.9), (0.3, 0.9), (0.01, 0.2)):
        logits = _logits(1, 5000, std)
        got = _probabilities(logits, _row(top_p=top_p)) > 0
        order = np.lexsort((np.arange(5000), -logits.double().numpy()))
        exact = torch.softmax(logits.double(), -1).numpy()[order]
        count = int((np.cumsum(exact) - exact < top_p).sum())
        assert abs(int(got.sum()) - count) <= (0 if count < 1024 else 1)
        assert set(got.nonzero()[:, 0].tolist()) >= set(order[: count - 1].tolist())


def test_penalties_and_bias() -> None:
    logits = torch.tensor([2.0, -2.0, 1.0, 0.5])
    row = _row(
        history=(0, 1, 2, 2, 2), num_prompt=2, presence_penalty=0.5, frequency_penalty=0.25,
        repetition_penalty=2.0, logit_bias={3: 1.5, 0: -1.0},
    )  # fmt: skip
    want = torch.tensor([1.0 - 1.0, -4.0, 0.5 - 0.5 - 3 * 0.25, 2.0])
    got = process(logits[None], [row])[0]
    torch.testing.assert_close(got, torch.log_softmax(want, -1))
    assert logits.tolist() == [2.0, -2.0, 1.0, 0.5], "the model's logits were changed"


def test_bias_bans_and_forces() -> None:
    logits = torch.tensor([300.0, 0.0, -300.0, 5.0])
    assert _probabilities(logits, _row(logit_bias={0: -100}))[0] == 0
    assert _token(logits, _row(temperature=0, logit_bias={0: -100})) == 3
    assert _token(logits, _row(temperature=0, logit_bias={2: 100})) == 2
    got = _probabilities(logits, _row(logit_bias={1: 100, 3: 100, 0: 99}))
    torch.testing.assert_close(got[1] + got[3], torch.tensor(1.0, dtype=torch.float64))


def test_banned_tokens_are_never_chosen() -> None:
    row = Row(SamplingParams(temperature=0), 0, (1,), 1, banned=frozenset({3}))
    assert _token(torch.tensor([0.0, 1.0, 2.0, 9.0]), row) == 2


LIMITS: list[tuple[dict[str, Any], bool]] = [
    ({"temperature": 0}, True),
    ({"temperature": 0, "top_p": 0.5, "top_k": 0}, True),
    ({"temperature": 1e-5}, True),
    ({"temperature": 1e-45}, True),
    ({"temperature": 1.0, "top_p": 1e-9}, True),
    ({"temperature": 1e30, "top_p": 1e-9}, True),
    ({"temperature": 1.0, "top_k": 1}, True),
    ({"temperature": 1e30}, False),
    ({"temperature": 1e30, "top_k": 10**6, "min_p": 1.0}, False),
    ({"temperature": 1.0, "min_p": 1.0}, False),
    ({"temperature": 2e-5}, False),
]


@pytest.mark.parametrize(("values", "is_argmax"), LIMITS)
@pytest.mark.parametrize(
    "logits",
    [
        [0.0, 5.0, 5.0, 1.0],
        [1.0, 1.0, 1.0, 1.0],
        [0.0, 1e38, -1e38, 1e38],
        [-3.4e38, 3.4e38, 0.0, 0.0],
        [-math.inf, 0.0, -math.inf, -1.0],
        [-1e-38, -1e-38, -2e-38, -3.0],
    ],
)
def test_limits(values: dict[str, Any], is_argmax: bool, logits: list[float]) -> None:
    x = torch.tensor(logits)
    row = _row(**values)
    p = _probabilities(x, row)
    assert bool(p.isfinite().all())
    assert abs(float(p.sum()) - 1) < 1e-6
    tokens = {_token(x, _row(seed, **values)) for seed in range(12)}
    assert all(p[token] > 0 for token in tokens)
    assert -math.inf not in {logits[token] for token in tokens}
    if is_argmax:
        assert tokens == {int(np.argmax(logits))}  # numpy takes the first of equal ones


def test_a_model_that_gives_nothing_to_choose_fails_alone() -> None:
    rows = torch.tensor([[0.0, 1.0], [math.nan, 1.0], [-math.inf, -math.inf], [math.inf, 0.0]])
    for temperature in (0.0, 1.0):
        chosen = choose(rows, [_row(temperature=temperature)] * 4)
        assert isinstance(chosen[0], Choice)
        assert all(isinstance(one, GenerationError) for one in chosen[1:])


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 1.3, "top_p": 0.8},
        {"min_p": 0.1},
        {"presence_penalty": 1.0, "logit_bias": {0: 2.0}},
    ],
)
def test_draws_follow_the_distribution(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evenly spread random numbers give every token as often as it should, to one draw."""
    logits = _logits(3, 8, 1.5)
    want = _probabilities(logits, _row(**values))
    spread = [(i + 0.5) / 1000 for i in range(1000)]
    monkeypatch.setattr("quantkit.runtime.sampler.uniform", lambda seed, *_: spread[seed])
    counts = Counter(_token(logits, _row(seed, **values)) for seed in range(1000))
    for token in range(8):
        assert abs(counts[token] - 1000 * float(want[token])) <= 1
        assert counts[token] == 0 or want[token] > 0


def test_random_numbers_are_even_and_independent() -> None:
    """Seeds and positions fill a grid of 16 x 16 cells as chance would (chi-square, p > 0.001)."""
    cells = Counter(
        (int(16 * uniform(seed, 5, Purpose.SAMPLE)), int(16 * uniform(seed, 6, Purpose.SAMPLE)))
        for seed in range(20_000)
    )
    expected = 20_000 / 256
    chi2 = sum((cells[a, b] - expected) ** 2 / expected for a in range(16) for b in range(16))
    assert 188 < chi2 < 331


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(0, 7))
def test_neighbors_change_nothing(seed: int, count: int) -> None:
    """A row gives the same token and log-probabilities alone and anywhere in any batch."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"top_p": 0.7},
        {"top_k": 3, "logprobs": 2},
        {"presence_penalty": 2.0, "logit_bias": {4: 3.0}},
    ]
    rows = [_row(seed + i, **kinds[(seed + i) % 4]) for i in range(count + 1)]
    logits = torch.stack([_logits(seed % 1000 + i) for i in range(count + 1)])
    together = choose(logits, rows)
    assert together == [choose(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]


def test_logprobs_are_the_models_own() -> None:
    logits = _logits(5)
    params = {"temperature": 0.2, "top_k": 1, "logit_bias": {7: -100}, "logprobs": 20}
    (choice,) = choose(logits[None], [_row(**params)])
    assert isinstance(choice, Choice)
    assert choice.logprob is not None
    raw = torch.log_softmax(logits, -1)
    assert choice.logprob.token_id == choice.token_id
    assert choice.logprob.logprob == float(raw[choice.token_id])
    values, ids = raw.sort(descending=True)
    assert choice.logprob.top == tuple(zip(ids[:20].tolist(), values[:20].tolist(), strict=True))


def test_logprobs_on_a_small_vocabulary_and_of_none() -> None:
    x = torch.tensor([0.0, -math.inf, 0.0])
    (choice,) = choose(x[None], [_row(temperature=0, logprobs=20)])
    assert isinstance(choice, Choice)
    assert choice.logprob is not None
    assert [token for token, _ in choice.logprob.top] == [0, 2, 1]
    assert choice.logprob.top[2][1] == -math.inf
    (choice,) = choose(x[None], [_row(temperature=0, logprobs=0)])
    assert isinstance(choice, Choice)
    assert choice.logprob is not None
    assert choice.logprob.top == ()
    (choice,) = choose(x[None], [_row(temperature=0)])
    assert isinstance(choice, Choice)
    assert choice.logprob is None


@given(
    st.lists(st.sampled_from([-math.inf, 0.0, 1.0, 2.0]), min_size=1, max_size=12),
    st.integers(1, 14),
)
def test_largest(values: list[float], k: int) -> None:
    got, ids = largest(torch.tensor(values), k)
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]
    assert ids.tolist() == order
    assert got.tolist() == [values[i] for i in order]


def test_draw_takes_the_inverse_of_the_distribution_function() -> None:
    x = torch.tensor([-math.inf, 0.1, -math.inf, 0.9, -0.5]).log_softmax(-1)
    edges = x.double().exp().cumsum(-1)
    for seed in range(60):
        u = uniform(seed, 2, Purpose.SAMPLE)
        want = int((edges > u).nonzero()[0])
        assert draw(x, _row(seed), Purpose.SAMPLE) == want


@pytest.mark.parametrize(("u", "want"), [(0.0, 1), (0.5, 3), (1 - 2**-53, 3)])
def test_draw_at_the_edges(u: float, want: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantkit.runtime.sampler.uniform", lambda *_: u)
    x = torch.tensor([-math.inf, 2.0, -math.inf, 2.0])
    assert draw(x, _row(), Purpose.SAMPLE) == want


@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [  # the known answers that come with the paper's code
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox(
    counter: tuple[int, int, int, int], key: tuple[int, int], want: tuple[int, ...]
) -> None:
    assert philox(counter, key) == want


def test_uniform_takes_any_seed() -> None:
    draws = {
        uniform(seed, position, Purpose.SAMPLE)
        for seed in (-(2**63), -1, 0, 1, 2**32, 2**64 - 2)
        for position in (0, 1, 2**31)
    }
    assert len(draws) == 18
    assert all(0 <= u < 1 for u in draws)
