"""QuantizedTensor: the one representation that travels from method to file to kernel."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from quantkit.core.scheme import WHOLE_ROW, Scheme

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """Integer codes with their scales; the exact value of each weight is ``decode()``.

    Attributes:
        scheme: the value grid.
        codes: uint8 [..., N, K], one unsigned code per element.
        scales: one tensor per scale level, finest first, [..., N, G] in the level's storage type.
        zeros: uint8 [..., N, G] when ``scheme.offset`` is ``zero``.
        minimums: as ``scales`` when ``scheme.offset`` is ``minimum``.
        perm: int32 [K] or None; stored column j holds input feature ``perm[j]``, and groups are
            contiguous in stored order.
    """

    scheme: Scheme
    codes: Tensor
    scales: tuple[Tensor, ...]
    zeros: Tensor | None = None
    minimums: tuple[Tensor, ...] = ()
    perm: Tensor | None = None

    def __post_init__(self) -> None:
        assert self.codes.dtype == torch.uint8 and self.codes.dim() >= 2
        assert len(self.scales) == len(self.scheme.levels)
        lead, columns = self.codes.shape[:-1], self.codes.shape[-1]
        for level, scale in zip(self.scheme.levels, self.scales, strict=True):
            assert scale.shape == (*lead, level.num_groups(columns)), (scale.shape, lead)
            assert scale.dtype == DTYPES[level.dtype]
        if self.scheme.offset == "zero":
            assert self.zeros is not None and self.zeros.dtype == torch.uint8
            assert self.zeros.shape == self.scales[0].shape
        else:
            assert self.zeros is None
        assert len(self.minimums) == (len(self.scales) if self.scheme.offset == "minimum" else 0)

    @property
    def shape(self) -> tuple[int, ...]:
        """[..., N, K]."""
        return tuple(self.codes.shape)

    def decode(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the weights [..., N, K] with columns in input order.

        Computed in float32 (float64 if asked for) and rounded once to ``dtype``. This is the oracle
        for every file and kernel.
        """
        compute = torch.float64 if dtype == torch.float64 else torch.float32
        weight = decode_stored(self, compute)
        if self.perm is not None:
            weight = weight[..., torch.argsort(self.perm.long())]
        return weight.to(dtype)

    def rows(self, index: slice | Tensor) -> Self:
        """The rows of N that ``index`` selects: views for a slice, copies for a tensor of ids."""
        return replace(
            self,
            codes=self.codes[..., index, :],
            scales=tuple(s[..., index, :] for s in self.scales),
            zeros=None if self.zeros is None else self.zeros[..., index, :],
            minimums=tuple(m[..., index, :] for m in self.minimums),
        )

    def equal(self, other: "QuantizedTensor") -> bool:
        """Bit-for-bit equality of scheme and every tensor."""
        mine, theirs = self.tensors(), other.tensors()
        return (
            self.scheme == other.scheme
            and mine.keys() == theirs.keys()
            and all(torch.equal(mine[k], theirs[k]) for k in mine)
        )

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that it holds, by field name (levels numbered)."""
        found = {"codes": self.codes}
        found |= {f"scales.{i}": s for i, s in enumerate(self.scales)}
        found |= {f"minimums.{i}": m for i, m in enumerate(self.minimums)}
        if self.zeros is not None:
            found["zeros"] = self.zeros
        if self.perm is not None:
            found["perm"] = self.perm
        return found


def decode_stored(qt: QuantizedTensor, compute: torch.dtype = torch.float32) -> Tensor:
    """Weights [..., N, K] with columns in stored order, in float32 or float64."""
    columns = qt.shape[-1]
    if qt.scheme.offset == "minimum":
        code = qt.codes.to(compute)
        return _spread(qt, qt.scales, compute) * code + _spread(qt, qt.minimums, compute)
    if qt.zeros is None:
        code = qt.codes.to(compute) - qt.scheme.center
    else:
        zero = _widen(qt.zeros.to(compute), qt.scheme.group, columns)
        code = qt.codes.to(compute) - zero
    return code.mul_(_spread(qt, qt.scales, compute))


def _spread(qt: QuantizedTensor, values: tuple[Tensor, ...], compute: torch.dtype) -> Tensor:
    """Product of all levels, [..., N, K] (a broadcast view where there is one level)."""
    columns = qt.shape[-1]
    product: Tensor | None = None
    for level, value in zip(qt.scheme.levels, values, strict=True):
        wide = _widen(value.to(compute), level.group, columns)
        product = wide if product is None else product * wide
    assert product is not None
    return product


def _widen(values: Tensor, group: int, columns: int) -> Tensor:
    """One value per group [..., G] -> one per column [..., K]."""
    if group == WHOLE_ROW:
        return values.expand(*values.shape[:-1], columns)
    return values.repeat_interleave(group, -1)[..., :columns]
