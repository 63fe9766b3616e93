"""Quantized linear by decoding a few rows of W at a time; the whole matrix never expands."""

import torch
from torch import Tensor

from quantkit.core.qtensor import decode_stored
from quantkit.core.scheme import ActScheme
from quantkit.kernels.ops import LinearKernel, LinearProblem
from quantkit.kernels.packed import PackedWeight

_CHUNK_ELEMENTS = 1 << 22


def run(x: Tensor, weight: PackedWeight) -> Tensor:
    """y [T, N] = x [T, K] @ W.T, computed in x's type.

    Memory beyond the packed weight: about 4 million decoded elements.
    """
    if weight.perm is not None:
        x = x[:, weight.perm.long()]
    if weight.scheme.act is not None:
        x = round_activations(x, weight.scheme.act)
    rows, columns = weight.shape
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    step = max(1, _CHUNK_ELEMENTS // columns)
    out = x.new_empty(x.shape[0], rows)
    for start in range(0, rows, step):
        part = decode_stored(weight.rows(slice(start, start + step)), compute)
        out[:, start : start + step] = x @ part.to(x.dtype).T
    return out


def round_activations(x: Tensor, act: ActScheme) -> Tensor:
    """Activations [T, K] rounded to the scheme's grid, as floats; 8 bits: scale = absmax / 127."""
    top = (1 << (act.bits - 1)) - 1
    absmax = x.abs().amax(-1, keepdim=True) if act.per == "token" else x.abs().max()
    scale = (absmax / top).clamp_min(torch.finfo(x.dtype).tiny)
    return (x / scale).round().clamp(-top, top) * scale


def _accepts(problem: LinearProblem) -> str | None:
    return None


KERNEL = LinearKernel(
    name="reference.linear",
    backend="reference",
    priority=0,
    accepts=_accepts,
    prepare=PackedWeight.from_quantized,
    run=run,
)
