"""Value grids: choose scales for a group of weights, and the nearest codes for given scales.

All functions work on weights [..., g], one group along the last axis. The search minimizes
sum_k h_k (w_k - decode(code_k))**2, where h is the importance of each input column (the diagonal of
the Gram matrix of its inputs, up to a factor), or 1.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from quantkit.core.qtensor import DTYPES, QuantizedTensor
from quantkit.core.scheme import WHOLE_ROW, Scheme

ScaleSearch = Literal["none", "mse", "weighted"]

# Scale candidates as fractions of the one that just covers the group; each is then refined in
# closed form. Fewer bits gain from deeper clipping.
_RATIOS = {2: (0.4, 1.05), 3: (0.45, 1.05), 4: (0.5, 1.05)}
_NUM_CANDIDATES = 10
_REFINEMENTS = 3
_CHUNK_ELEMENTS = 1 << 16
_ROWS_ELEMENTS = 1 << 24


@dataclass(frozen=True, eq=False)
class GroupParams:
    """Scale and offset of groups: tensors [...], float32 values that their storage type can hold.

    ``offset`` is the zero point for ``zero`` grids, the minimum for ``minimum`` grids, else None.
    """

    scale: Tensor
    offset: Tensor | None


def encode(weight: Tensor, scheme: Scheme, params: GroupParams) -> Tensor:
    """Nearest codes of weights [..., g], as floats in 0..max_code; for a zero scale the center."""
    scale = params.scale[..., None]
    inverse = torch.where(scale == 0, 0.0, 1.0 / scale)
    if scheme.offset == "minimum":
        assert params.offset is not None
        code = (weight - params.offset[..., None]) * inverse
    else:
        zero = scheme.center if params.offset is None else params.offset[..., None]
        code = weight * inverse + zero
    return code.round_().clamp_(0, scheme.max_code)


def decode(code: Tensor, scheme: Scheme, params: GroupParams) -> Tensor:
    """Values of codes [..., g]."""
    scale = params.scale[..., None]
    if scheme.offset == "minimum":
        assert params.offset is not None
        return scale * code + params.offset[..., None]
    zero = scheme.center if params.offset is None else params.offset[..., None]
    return scale * (code - zero)


def fit(
    weight: Tensor, scheme: Scheme, importance: Tensor | None, search: ScaleSearch
) -> GroupParams:
    """Choose scale and offset of every group.

    Args:
        weight: [..., g] float32.
        scheme: its bits, offset and the storage type of the finest scale level are used.
        importance: non-negative [..., g], broadcast over leading axes; only ``weighted`` reads it.
        search: ``none`` covers the group's range; ``mse`` and ``weighted`` search.

    Returns:
        Parameters [...].
    """
    if search == "none":
        return _cover(weight, scheme, 1.0)
    if search == "mse" or importance is None:
        importance = torch.ones_like(weight[(0,) * (weight.dim() - 1)])
    importance = importance.to(weight.dtype).expand_as(weight)
    lead, group = weight.shape[:-1], weight.shape[-1]
    flat, heavy = weight.reshape(-1, group), importance.reshape(-1, group)
    step = max(1, _CHUNK_ELEMENTS // group)  # keeps the candidates' temporaries in cache
    parts = [
        _search(flat[i : i + step], heavy[i : i + step], scheme) for i in range(0, len(flat), step)
    ]
    scale = torch.cat([p.scale for p in parts]).reshape(lead)
    offsets = [p.offset for p in parts if p.offset is not None]
    return GroupParams(scale, torch.cat(offsets).reshape(lead) if offsets else None)


def _search(weight: Tensor, importance: Tensor, scheme: Scheme) -> GroupParams:
    """Best parameters found for weights [n, g], never worse than those that cover the range."""
    low, high = _RATIOS.get(scheme.bits, (0.7, 1.05))
    signs = (1.0, -1.0) if scheme.offset == "none" else (1.0,)
    start, start_gain = _cover(weight, scheme, 1.0), torch.full_like(weight[:, 0], -1.0)
    for sign in signs:
        for ratio in torch.linspace(low, high, _NUM_CANDIDATES).tolist():
            params = _cover(weight, scheme, sign * ratio)
            gain = _gain(weight, importance, scheme, encode(weight, scheme, params), params)
            better = gain > start_gain  # False for NaN, which an overflowing candidate gives
            start = _choose(better, params, start)
            start_gain = torch.where(better, gain, start_gain)
    best = _cover(weight, scheme, 1.0)
    best_error = _error(weight, importance, scheme, best)
    for _ in range(_REFINEMENTS):
        start = _refine(weight, importance, scheme, start)
        best, best_error = _keep_better(weight, importance, scheme, start, best, best_error)
    return best


def _gain(
    weight: Tensor, importance: Tensor, scheme: Scheme, code: Tensor, params: GroupParams
) -> Tensor:
    """Weighted square that the best scale for these codes explains; the larger, the better."""
    if scheme.offset == "minimum":
        total = importance.sum(-1)
        mean_w = (importance * weight).sum(-1) / total
        centered = code - ((importance * code).sum(-1) / total)[..., None]
        heavy = importance * centered
        top, bottom = (heavy * weight).sum(-1), (heavy * centered).sum(-1)
        return torch.where(bottom > 0, top.square() / bottom, 0.0) + total * mean_w.square()
    level = code - (scheme.center if params.offset is None else params.offset[..., None])
    heavy = importance * level
    top, bottom = (heavy * weight).sum(-1), (heavy * level).sum(-1)
    return torch.where(bottom > 0, top.square() / bottom, 0.0)


def _choose(better: Tensor, new: GroupParams, old: GroupParams) -> GroupParams:
    offset = old.offset
    if offset is not None and new.offset is not None:
        offset = torch.where(better, new.offset, offset)
    return GroupParams(torch.where(better, new.scale, old.scale), offset)


def _keep_better(
    weight: Tensor,
    importance: Tensor,
    scheme: Scheme,
    params: GroupParams,
    best: GroupParams,
    best_error: Tensor,
) -> tuple[GroupParams, Tensor]:
    error = _error(weight, importance, scheme, params)
    better = error < best_error
    return _choose(better, params, best), torch.where(better, error, best_error)


def _error(weight: Tensor, importance: Tensor, scheme: Scheme, params: GroupParams) -> Tensor:
    miss = decode(encode(weight, scheme, params), scheme, params).sub_(weight)
    return (miss.square_() * importance).sum(-1)


def _cover(weight: Tensor, scheme: Scheme, ratio: float) -> GroupParams:
    """Parameters whose range is ``ratio`` times that of the group.

    Symmetric grids have one code more below zero than above; a negative ratio turns the grid over,
    so that the extra code serves the positive side.
    """
    if scheme.offset == "none":
        return GroupParams(
            _stored(weight.abs().amax(-1) * (2 * ratio / scheme.max_code), scheme), None
        )
    low = weight.amin(-1).clamp_max(0.0) * ratio
    high = weight.amax(-1).clamp_min(0.0) * ratio
    scale = _stored((high - low) / scheme.max_code, scheme)
    if scheme.offset == "minimum":
        return GroupParams(scale, _stored(low, scheme))
    zero = torch.where(scale == 0, 0.0, -low / scale).round_().clamp_(0, scheme.max_code)
    return GroupParams(scale, zero)


def _refine(weight: Tensor, importance: Tensor, scheme: Scheme, params: GroupParams) -> GroupParams:
    """Least squares for the parameters with the codes of ``params`` frozen."""
    code = encode(weight, scheme, params)
    if scheme.offset == "minimum":
        return _refine_line(weight, importance, scheme, code, params)
    level = code - (scheme.center if params.offset is None else params.offset[..., None])
    heavy = importance * level
    bottom = (heavy * level).sum(-1)
    scale = torch.where(bottom > 0, (heavy * weight).sum(-1) / bottom, params.scale)
    return GroupParams(_stored(scale, scheme), params.offset)


def _refine_line(
    weight: Tensor, importance: Tensor, scheme: Scheme, code: Tensor, params: GroupParams
) -> GroupParams:
    """Weighted straight line w = s c + m through the codes."""
    assert params.offset is not None
    total = importance.sum(-1).clamp_min(torch.finfo(weight.dtype).tiny)
    mean_c = (importance * code).sum(-1) / total
    mean_w = (importance * weight).sum(-1) / total
    centered = importance * (code - mean_c[..., None])
    bottom = (centered * code).sum(-1)
    scale = torch.where(bottom > 0, (centered * weight).sum(-1) / bottom, params.scale)
    scale = _stored(scale, scheme)
    return GroupParams(scale, _stored(mean_w - scale * mean_c, scheme))


def _stored(values: Tensor, scheme: Scheme) -> Tensor:
    """Values rounded to the storage type of the scheme's scales."""
    return values.to(DTYPES[scheme.levels[0].dtype]).to(values.dtype)


def grouped(weight: Tensor, group: int) -> Tensor:
    """[N, K] -> [N, G, g] as a view; the group must divide K or be the whole row."""
    size = weight.shape[-1] if group == WHOLE_ROW else group
    return weight.reshape(*weight.shape[:-1], -1, size)


def assemble(scheme: Scheme, codes: Tensor, params: GroupParams) -> QuantizedTensor:
    """QuantizedTensor from codes [N, K] (any number type) and group parameters [N, G]."""
    dtype = DTYPES[scheme.levels[0].dtype]
    zeros = (
        params.offset.to(torch.uint8)
        if scheme.offset == "zero" and params.offset is not None
        else None
    )
    minimums: tuple[Tensor, ...] = ()
    if scheme.offset == "minimum":
        assert params.offset is not None
        minimums = (params.offset.to(dtype),)
    return QuantizedTensor(
        scheme, codes.to(torch.uint8), (params.scale.to(dtype),), zeros, minimums
    )


def round_nearest(
    weight: Tensor, scheme: Scheme, importance: Tensor | None = None, search: ScaleSearch = "none"
) -> QuantizedTensor:
    """Round weights [N, K] to the nearest codes, with scales from ``fit``.

    Args:
        weight: [N, K] floats; the scheme's group must divide K.
        scheme: one scale level.
        importance: [K], see ``fit``.
        search: see ``fit``.
    """
    heavy = None if importance is None else grouped(importance[None], scheme.group)[0]
    codes = torch.empty(weight.shape, dtype=torch.uint8)
    parts = []
    step = max(1, _ROWS_ELEMENTS // weight.shape[-1])  # an embedding never expands as a whole
    for start in range(0, weight.shape[0], step):
        groups = grouped(weight[start : start + step].to(torch.float32), scheme.group)
        parts.append(fit(groups, scheme, heavy, search))
        codes[start : start + step] = encode(groups, scheme, parts[-1]).flatten(-2)
    offsets = [p.offset for p in parts if p.offset is not None]
    params = GroupParams(
        torch.cat([p.scale for p in parts]), torch.cat(offsets) if offsets else None
    )
    return assemble(scheme, codes, params)
