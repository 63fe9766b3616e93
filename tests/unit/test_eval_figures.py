"""Likelihood and divergence against slow loops in plain Python floats."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantkit.errors import ModelError
from quantkit.eval import divergence as divergence_module
from quantkit.eval import perplexity as perplexity_module
from quantkit.eval.divergence import best_token, histogram, kl_divergence, percentile
from quantkit.eval.perplexity import perplexity, row_chunks, standard_error, token_nll


def logits(rows: int, columns: int, seed: int, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def log_softmax(row: list[float]) -> list[float]:
    top = max(row)
    total = math.fsum(math.exp(value - top) for value in row)
    return [value - top - math.log(total) for value in row]


def slow_kl(base: list[float], other: list[float]) -> float:
    p, q = log_softmax(base), log_softmax(other)
    return math.fsum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("scale", [0.01, 1.0, 60.0])
def test_nll_and_kl_equal_loops(scale: float) -> None:
    base, other = logits(9, 31, 0, scale), logits(9, 31, 1, scale)
    targets = torch.arange(9)
    nll, kl = token_nll(base, targets), kl_divergence(base, other)
    assert nll.dtype == kl.dtype == torch.float64
    for row in range(9):
        expected = -log_softmax(base[row].tolist())[row]
        assert float(nll[row]) == pytest.approx(expected, rel=1e-12, abs=1e-12)
        expected = slow_kl(base[row].tolist(), other[row].tolist())
        assert float(kl[row]) == pytest.approx(expected, rel=1e-10)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    base, other, targets = logits(23, 50, 2), logits(23, 50, 3), torch.arange(23)
    whole = token_nll(base, targets), kl_divergence(base, other)
    monkeypatch.setattr(perplexity_module, "_CHUNK_BYTES", 3 * 50 * 8)
    monkeypatch.setattr(divergence_module, "_CHUNK_BYTES", 3 * 50 * 8)
    for a, b in zip(whole, (token_nll(base, targets), kl_divergence(base, other)), strict=True):
        assert torch.equal(a, b)


@given(rows=st.integers(0, 40), columns=st.integers(1, 9), limit=st.integers(1, 200))
def test_row_chunks_cover_every_row_once(rows: int, columns: int, limit: int) -> None:
    chunks = list(row_chunks(rows, columns, 4, limit))
    assert [row for chunk in chunks for row in range(rows)[chunk]] == list(range(rows))
    assert all((c.stop - c.start) * columns * 4 <= limit or c.stop - c.start == 1 for c in chunks)


@pytest.mark.parametrize("scale", [0.001, 1.0, 100.0])
def test_kl_with_itself(scale: float) -> None:
    base = logits(50, 64, 4, scale)
    kl = kl_divergence(base, base.clone())
    assert 0.0 <= float(kl.min()) <= float(kl.max()) < 1e-12


def test_small_divergence_of_a_peaked_model_is_exact() -> None:
    """Logits over 100 apart and a shift in the tail: a cut-off or 16 bits would lose it."""
    base = torch.zeros(1, 64)
    base[0, 0] = 120.0
    other = base.clone()
    other[0, 0] -= 0.25
    expected = 63 * (math.exp(-119.75) - math.exp(-120) - 0.25 * math.exp(-120))
    wide = kl_divergence(base.double() - 100, other.double() - 100)
    # 1 - p is below float64's resolution of p, so the sum ends at rounding, not below zero.
    assert 0.0 <= float(wide[0]) <= 1e-15
    assert expected < 1e-15


def test_padding_of_the_vocabulary_is_left_out() -> None:
    base, other = logits(5, 40, 5), logits(5, 48, 6)
    expected = kl_divergence(base, other[:, :40])
    assert torch.equal(kl_divergence(base, other), expected)
    assert torch.equal(kl_divergence(other, base), kl_divergence(other[:, :40], base))
    other[:, 45] = 1e3
    assert best_token(other, 48).tolist() == [45] * 5
    assert best_token(other, 40).tolist() == other[:, :40].argmax(1).tolist()


@given(
    values=st.lists(st.floats(0, 1e6), min_size=1, max_size=300), share=st.sampled_from([0.5, 0.99])
)
def test_percentile_is_between_its_two_neighbors(values: list[float], share: float) -> None:
    place = share * (len(values) - 1)
    low, part = int(place), place - int(place)
    ranked = sorted(values)
    above = ranked[min(low + 1, len(values) - 1)]
    expected = ranked[low] + part * (above - ranked[low])
    found = percentile(torch.tensor(values, dtype=torch.float64), share)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_percentile_of_known_numbers() -> None:
    assert percentile(torch.arange(101.0).double(), 0.99) == 99.0
    assert percentile(torch.tensor([1.0, 2.0]).double(), 0.99) == pytest.approx(1.99)
    assert percentile(torch.tensor([7.0]).double(), 0.99) == 7.0


def test_histogram_counts_each_value_once() -> None:
    values = torch.tensor([0.0, 9e-7, 1e-6, 2e-3, 0.5, 9.99, 10.0, 4e3], dtype=torch.float64)
    bins = histogram(values)
    assert sum(each.count for each in bins) == len(values)
    assert (bins[0].low, bins[0].count) == (0.0, 2)
    assert (bins[-1].count, bins[-1].high) == (2, 4e3)
    for low, high in pairwise(bins):
        assert low.high == high.low
    for each in bins[1:-1]:
        inside = ((values >= each.low) & (values < each.high)).sum()
        assert each.count == int(inside)


def test_standard_error_by_hand() -> None:
    values = torch.tensor([1.0, 2.0, 4.0, 9.0], dtype=torch.float64)
    mean = 4.0
    expected = math.sqrt(sum((v - mean) ** 2 for v in values.tolist()) / 3 / 4)
    assert standard_error(values) == pytest.approx(expected, rel=1e-12)
    assert standard_error(values[:1]) == 0.0


@pytest.mark.parametrize("value", [701.0, math.inf, math.nan])
def test_a_perplexity_that_is_no_number(value: float) -> None:
    with pytest.raises(ModelError, match=r"^broken: the mean negative log-likelihood"):
        perplexity(value, "broken")
    assert perplexity(0.0, "good") == 1.0
