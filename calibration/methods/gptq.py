"""GPTQ: round column by column, each rounding error compensated by the columns that follow.

Minimizes tr((W - Q) G (W - Q)^T), with G the Gram matrix of the inputs (Frantar et al., 2022). In
processing order factor G = U D U^T with U unit upper triangular; then the error is

    sum_j D_j |w_j + sum_{i<j} U_ij (w_i - q_i) - q_j|^2

so each column is rounded after adding the errors of those before it. This is the same solution as
with the inverse Hessian of the paper (Chee et al., 2023, theorem 6), needs no inverse, and stays
accurate where G is nearly singular.

Deviations from the paper: scales from a weighted search; two orders that keep groups contiguous in
storage (no g_idx): ``static`` takes all columns by falling diagonal with scales frozen from the
original weights, ``groups`` takes whole groups by falling total diagonal, columns ordered inside,
scales from the corrected weights when a group starts; damping that escalates, float64, then
weighted rounding.

Cost: one Cholesky factor and 2 N K^2 operations; memory 3 K^2 + 4 N K floats.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from quantkit.calibration.method import Method, MethodOptions, Rounded
from quantkit.calibration.stats import Stats
from quantkit.core.grids import (
    GroupParams,
    ScaleSearch,
    assemble,
    decode,
    encode,
    fit,
    grouped,
    round_nearest,
)
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.scheme import WHOLE_ROW, Scheme
from quantkit.errors import QuantkitError

Order = Literal["static", "groups", "none"]
_ESCALATION = (1.0, 10.0, 100.0)


class GptqOptions(MethodOptions):
    """Settings of GPTQ.

    ``damp``: added to the diagonal, as a fraction of its mean; ``block``: columns that are
    compensated by one matrix product (no effect on the result); ``order``: see the module.
    """

    damp: float = 0.01
    block: int = 32
    order: Order = "groups"
    scale_search: ScaleSearch = "weighted"


@dataclass(frozen=True, eq=False)
class Factor:
    """G + damping = U D U^T in processing order.

    Attributes:
        order: column that is processed at each step [K].
        unit: U, unit upper triangular [K, K].
        pivots: D [K].
        damp: fraction of the mean diagonal that was added.
        added: the same as a number.
        precision: ``float32`` or ``float64``.
    """

    order: Tensor
    unit: Tensor
    pivots: Tensor
    damp: float
    added: float
    precision: str


def round_gptq(
    weight: Tensor, stats: Stats | None, scheme: Scheme, options: GptqOptions
) -> Rounded:
    """Quantize weights [N, K] with the Gram matrix of their inputs; see ``Method.round``."""
    if stats is None or stats.gram is None:
        raise QuantkitError("gptq needs calibration statistics")
    importance = stats.importance
    notes: dict[str, Any] = {
        "tokens": stats.num_tokens,
        "dead_columns": int((importance == 0).sum()),
    }
    factor = factorize(
        stats.gram, processing_order(importance, scheme.group, options.order), options.damp
    )
    nearest = round_nearest(weight, scheme, importance, options.scale_search)
    if factor is None:
        notes |= {"choice": "rtn", "reason": "the Gram matrix could not be factored"}
        return Rounded(nearest, _diagonal_error(weight, nearest, importance), notes)
    notes |= {"damp": factor.damp, "precision": factor.precision}
    tensor = compensate(weight, factor, importance, scheme, options)
    total = weighted_square(weight, factor).clamp_min(1e-30)
    error = float(weighted_square(weight - tensor.decode(weight.dtype), factor) / total)
    error_nearest = float(weighted_square(weight - nearest.decode(weight.dtype), factor) / total)
    notes |= {"choice": "gptq", "error_rtn": error_nearest}
    if not error <= error_nearest:
        notes["choice"] = "rtn"
        return Rounded(nearest, error_nearest, notes)
    return Rounded(tensor, error, notes)


def processing_order(importance: Tensor, group: int, order: Order) -> Tensor:
    """Column processed at each step [K], from the diagonal of the Gram matrix [K]."""
    columns = importance.shape[0]
    if order == "none":
        return torch.arange(columns)
    if order == "static" or group == WHOLE_ROW:
        return torch.argsort(importance, descending=True, stable=True)
    groups = importance.view(-1, group)
    outer = torch.argsort(groups.sum(-1), descending=True, stable=True)
    inner = torch.argsort(groups, dim=-1, descending=True, stable=True)
    return (outer[:, None] * group + inner[outer]).flatten()


def factorize(gram: Tensor, order: Tensor, damp: float) -> Factor | None:
    """Factor the damped Gram matrix [K, K]; None when even strong damping in float64 fails.

    An input that was always zero gets an uncoupled unit diagonal, so its column is merely rounded.
    """
    diagonal = gram.diagonal()
    mean = float(diagonal.double().mean())
    if not 0 < mean < float("inf"):
        return None
    backwards = order.flip(0)
    dead = torch.nonzero(diagonal[backwards] == 0).flatten()
    for dtype in (torch.float32, torch.float64):
        for boost in _ESCALATION:
            if dtype == torch.float32 and gram.dtype == torch.float64:
                continue
            reversed_gram = gram[backwards[:, None], backwards].to(dtype)
            reversed_gram.diagonal().add_(damp * boost * mean)
            reversed_gram[dead, dead] = mean
            lower, info = torch.linalg.cholesky_ex(reversed_gram)
            del reversed_gram
            if int(info) or not bool(torch.isfinite(lower.diagonal()).all()):
                continue
            # With J the reversal, J G J = L L^T gives G = (J L J)(J L J)^T, upper triangular.
            upper = lower.flip(0, 1)
            del lower
            roots = upper.diagonal().clone()
            unit = upper.div_(roots).to(gram.dtype)
            pivots = roots.square().to(gram.dtype)
            precision = str(dtype).removeprefix("torch.")
            added = damp * boost * mean
            return Factor(order, unit, pivots, damp * boost, added, precision)
    return None


def compensate(
    weight: Tensor, factor: Factor, importance: Tensor, scheme: Scheme, options: GptqOptions
) -> QuantizedTensor:
    """Round weights [N, K] in the factor's order, adding the errors of earlier columns."""
    group = weight.shape[1] if scheme.group == WHOLE_ROW else scheme.group
    columns = weight.shape[1]
    ordered = weight.T[factor.order].contiguous()  # [K, N]: a column is one contiguous row
    errors = torch.zeros_like(ordered)
    codes = torch.empty(ordered.shape, dtype=torch.uint8)
    heavy = grouped(importance[None].to(weight.dtype), group)[0]
    by_group = options.order == "groups" and scheme.group != WHOLE_ROW
    # By group, these parameters are replaced when the group starts, so they need no search.
    search = "none" if by_group else options.scale_search
    params = fit(grouped(weight, group), scheme, heavy, search)  # [N, G]

    def corrected(start: int, stop: int) -> Tensor:
        return torch.addmm(ordered[start:stop], factor.unit[:start, start:stop].T, errors[:start])

    def expected(start: int, stop: int) -> Tensor:
        """The values that these columns will be rounded from, rounding inside them aside."""
        shift = corrected(start, stop) - ordered[start:stop]
        inside = factor.unit[start:stop, start:stop].T
        shift = torch.linalg.solve_triangular(inside, shift, upper=False, unitriangular=True)
        return ordered[start:stop] + shift

    owner = (factor.order // group).tolist()
    step = group if by_group else columns
    for first in range(0, columns, step):
        if by_group:
            where = factor.order[first : first + group]
            natural = torch.argsort(where)
            fresh = fit(
                expected(first, first + group)[natural].T,
                scheme,
                importance[where[natural]].to(weight.dtype),
                options.scale_search,
            )
            _replace(params, owner[first], fresh)
        for start in range(first, first + step, options.block):
            stop = min(start + options.block, first + step)
            _round_block(
                corrected(start, stop), start, owner, factor, params, scheme, ordered, errors, codes
            )
    stored = torch.empty(weight.shape, dtype=torch.uint8)
    stored[:, factor.order] = codes.T
    return assemble(scheme, stored, params)


def _round_block(
    work: Tensor,
    start: int,
    owner: list[int],
    factor: Factor,
    params: GroupParams,
    scheme: Scheme,
    ordered: Tensor,
    errors: Tensor,
    codes: Tensor,
) -> None:
    """Round the columns of one block [B, N] in turn, correcting the rest of it after each."""
    for i in range(work.shape[0]):
        column = start + i
        own = _pick(params, owner[column])
        code = encode(work[i][:, None], scheme, own)
        codes[column] = code[:, 0]
        errors[column] = ordered[column] - decode(code, scheme, own)[:, 0]
        if i + 1 < work.shape[0]:
            ahead = factor.unit[column, column + 1 : start + work.shape[0]]
            work[i + 1 :].addr_(ahead, errors[column])


def _pick(params: GroupParams, group: int) -> GroupParams:
    offset = None if params.offset is None else params.offset[:, group]
    return GroupParams(params.scale[:, group], offset)


def _replace(params: GroupParams, group: int, fresh: GroupParams) -> None:
    params.scale[:, group] = fresh.scale
    if params.offset is not None and fresh.offset is not None:
        params.offset[:, group] = fresh.offset


def weighted_square(values: Tensor, factor: Factor) -> Tensor:
    """tr(V G V^T) of values [N, K], without the damping."""
    damped = (values[:, factor.order] @ factor.unit).square_().mul_(factor.pivots).sum()
    return damped - factor.added * values.square().sum()


def _diagonal_error(weight: Tensor, tensor: QuantizedTensor, importance: Tensor) -> float:
    miss = ((weight - tensor.decode()).square() * importance).sum()
    return float(miss / (weight.square() * importance).sum().clamp_min(1e-30))


METHOD = Method(
    name="gptq",
    summary="error-compensated rounding with the Gram matrix of the inputs",
    options=GptqOptions,
    needs=lambda options: frozenset({"gram"}),
    round=round_gptq,
)
