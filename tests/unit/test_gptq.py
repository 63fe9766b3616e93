"""GPTQ against a slow column-by-column reference, and on Gram matrices that break naive ones."""

import pytest
import torch

from quantkit.calibration.methods.gptq import (
    GptqOptions,
    compensate,
    factorize,
    processing_order,
    round_gptq,
    weighted_square,
)
from quantkit.calibration.stats import Stats
from quantkit.core.grids import GroupParams, decode, encode, fit, grouped, round_nearest
from quantkit.core.scheme import Scheme

SCHEME = Scheme.parse("w4a16-g32")
DAMP = 0.01


def correlated(columns: int = 128, tokens: int = 2048) -> torch.Tensor:
    """Inputs of which each feature is 0.9 correlated with its neighbor [T, K], float64."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, columns, generator=generator, dtype=torch.float64)
    for k in range(1, columns):
        x[:, k] = 0.9 * x[:, k - 1] + (1 - 0.81) ** 0.5 * x[:, k]
    return x


def weights(rows: int = 64, columns: int = 128) -> torch.Tensor:
    return 0.1 * torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))


def stats_of(x: torch.Tensor) -> Stats:
    stats = Stats.empty(x.shape[1], with_gram=True)
    stats.update(x.float())
    return stats


def reference(weight, gram, scheme, order, damp, params=None, importance=None):
    """The paper's algorithm with the inverse Hessian, one column at a time, in float64.

    Without ``params``, the scales of a group come from the corrected weights when it starts.
    """
    work = weight.double()[:, order].clone()
    hessian = gram.double()[order][:, order].clone()
    hessian.diagonal().add_(damp * hessian.diagonal().mean())
    inverse = torch.linalg.cholesky(torch.linalg.inv(hessian), upper=True)
    codes = torch.empty_like(work)
    current = None
    for j, column in enumerate(order.tolist()):
        group = column // scheme.group
        if params is not None:
            current = GroupParams(params.scale[:, group].double(), None)
        elif j % scheme.group == 0:
            natural = torch.argsort(order[j : j + scheme.group])
            heavy = importance[order[j : j + scheme.group][natural]].double()
            current = fit(work[:, j : j + scheme.group][:, natural], scheme, heavy, "weighted")
        code = encode(work[:, j : j + 1].clone(), scheme, current)
        codes[:, j] = code[:, 0]
        miss = (work[:, j] - decode(code, scheme, current)[:, 0]) / inverse[j, j]
        work[:, j + 1 :] -= miss[:, None] * inverse[j, j + 1 :][None]
    natural_codes = torch.empty_like(codes)
    natural_codes[:, order] = codes
    return natural_codes.to(torch.uint8)


@pytest.mark.parametrize("order", ["none", "static"])
def test_equals_the_paper_in_float64(order) -> None:
    x, w = correlated(), weights().double()
    gram, stats = x.T @ x, stats_of(x)
    sequence = processing_order(stats.importance, 32, order)
    params = fit(grouped(w, 32), SCHEME, grouped(stats.importance[None], 32)[0], "weighted")
    want = reference(w, gram, SCHEME, sequence, DAMP, params)
    factor = factorize(gram, sequence, DAMP)
    got = compensate(w, factor, stats.importance, SCHEME, GptqOptions(order=order))
    assert torch.equal(got.codes, want)


def test_group_order_equals_the_paper_with_fresh_scales() -> None:
    x, w = correlated(), weights().double()
    gram, stats = x.T @ x, stats_of(x)
    sequence = processing_order(stats.importance, 32, "groups")
    want = reference(w, gram, SCHEME, sequence, DAMP, importance=stats.importance)
    factor = factorize(gram, sequence, DAMP)
    got = compensate(w, factor, stats.importance, SCHEME, GptqOptions(order="groups"))
    assert torch.equal(got.codes, want)


def test_float32_agrees_with_float64() -> None:
    x, w = correlated(), weights()
    gram, stats = x.T @ x, stats_of(x)
    order = processing_order(stats.importance, 32, "static")
    exact = factorize(gram, order, DAMP)
    options = GptqOptions(order="static")
    want = compensate(w.double(), exact, stats.importance, SCHEME, options)
    got = compensate(w, factorize(gram.float(), order, DAMP), stats.importance, SCHEME, options)
    assert (got.codes != want.codes).float().mean() <= 1e-3
    errors = [weighted_square(w.double() - q.decode(torch.float64), exact) for q in (got, want)]
    assert abs(errors[0] / errors[1] - 1) <= 1e-3


@pytest.mark.parametrize("order", ["none", "static", "groups"])
def test_block_size_changes_nothing(order) -> None:
    x, w = correlated(), weights().double()
    stats = stats_of(x)
    factor = factorize(x.T @ x, processing_order(stats.importance, 32, order), DAMP)
    results = [
        compensate(w, factor, stats.importance, SCHEME, GptqOptions(order=order, block=block))
        for block in (1, 32, 48, 64, 96, 128)
    ]
    assert all(result.equal(results[0]) for result in results)


def test_identity_gram_is_plain_rounding() -> None:
    w = weights()
    stats = Stats.empty(128, with_gram=True)
    stats.num_tokens = 1
    stats.square += 3.0
    stats.gram += 3.0 * torch.eye(128)
    for order in ("none", "static", "groups"):
        got = round_gptq(w, stats, SCHEME, GptqOptions(order=order))
        want = round_nearest(w, SCHEME, stats.importance, "weighted")
        assert got.tensor.equal(want)


@pytest.mark.parametrize("order", ["static", "groups"])
@pytest.mark.parametrize("text", ["w2a16-g32", "w3a16-g32-asym", "w4a16-g32", "q4_1", "w4a16-grow"])
def test_compensation_beats_rounding_on_correlated_inputs(order, text) -> None:
    x, w = correlated(), weights()
    result = round_gptq(w, stats_of(x), Scheme.parse(text), GptqOptions(order=order))
    gram = x.T @ x

    def weighted(qt):
        miss = w.double() - qt.decode(torch.float64)
        return float((miss @ gram * miss).sum())

    plain = round_nearest(w, Scheme.parse(text))
    assert result.notes["choice"] == "gptq"
    assert weighted(result.tensor) <= 0.35 * weighted(plain)
    assert result.error <= result.notes["error_rtn"]
    assert result.error == pytest.approx(
        weighted(result.tensor) / float((w.double() @ gram * w.double()).sum()), rel=0.01
    )


def test_four_bits_reach_three_tenths_of_plain_rounding() -> None:
    x, w = correlated(), weights()
    gram = x.T @ x
    result = round_gptq(w, stats_of(x), SCHEME, GptqOptions())
    errors = [
        float(((w.double() - qt.decode(torch.float64)) @ gram * (w - qt.decode()).double()).sum())
        for qt in (result.tensor, round_nearest(w, SCHEME))
    ]
    assert errors[0] <= 0.3 * errors[1]


def singular(scale: float | None = None) -> torch.Tensor:
    x = correlated()
    x[:, 5] = x[:, 6] = 1.0
    x[:, 7] = 0.0
    if scale is not None:
        x[:, 8] = scale * x[:, 9]
    return x


def test_singular_gram() -> None:
    x, w = singular(), weights()
    result = round_gptq(w, stats_of(x), SCHEME, GptqOptions())
    assert torch.isfinite(result.tensor.decode()).all()
    assert result.notes["dead_columns"] == 1
    assert result.notes["damp"] > 0
    assert result.error <= 0.5 * result.notes["error_rtn"]


def test_one_input_ten_thousand_times_larger() -> None:
    x, w = singular(1e4), weights()
    result = round_gptq(w, stats_of(x), SCHEME, GptqOptions())
    assert torch.isfinite(result.tensor.decode()).all()
    assert result.error <= 1.1 * result.notes["error_rtn"]


def test_a_dead_column_is_rounded_to_nearest() -> None:
    x, w = singular(), weights()
    result = round_gptq(w, stats_of(x), SCHEME, GptqOptions(order="static"))
    nearest = round_nearest(w, SCHEME, stats_of(x).importance, "weighted")
    assert torch.equal(result.tensor.codes[:, 7], nearest.codes[:, 7])


def test_damping_escalates_and_float64_is_tried() -> None:
    x = correlated(32, 4)  # rank 4 of 32
    gram = (x.T @ x).float()
    gram -= 1e-3 * gram.diagonal().mean() * torch.eye(32)  # no longer positive
    order = torch.arange(32)
    factor = factorize(gram, order, 1e-4)
    assert factor is not None
    assert factor.damp > 1e-4
    assert factorize(-torch.eye(32), order, DAMP) is None
    assert factorize(torch.zeros(32, 32), order, DAMP) is None


def test_a_hopeless_gram_falls_back_and_says_so() -> None:
    stats = Stats.empty(128, with_gram=True)
    stats.num_tokens = 1
    stats.square += 1.0
    stats.gram += torch.full((128, 128), -1.0) + 2 * torch.eye(128)
    result = round_gptq(weights(), stats, SCHEME, GptqOptions())
    assert result.notes["choice"] == "rtn"
    assert "reason" in result.notes
    assert torch.isfinite(result.tensor.decode()).all()


def test_groups_stay_contiguous_and_rows_independent() -> None:
    x, w = correlated(), weights()
    stats = stats_of(x)
    whole = round_gptq(w, stats, SCHEME, GptqOptions()).tensor
    part = round_gptq(w[10:20], stats, SCHEME, GptqOptions()).tensor
    assert whole.perm is None
    assert (part.codes != whole.codes[10:20]).float().mean() < 1e-3
