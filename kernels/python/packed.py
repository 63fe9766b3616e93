"""PackedWeight: a QuantizedTensor with its codes packed, as it stays in memory for serving."""

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from quantkit.core.packing import pack, unpack
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.scheme import Scheme


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A matrix of packed codes, from which any rows can be decoded.

    Attributes:
        scheme: the value grid.
        words: int32 [N, ceil(K * bits / 32)], codes packed along K.
        columns: K.
        scales, zeros, minimums, perm: as in QuantizedTensor.
    """

    scheme: Scheme
    words: Tensor
    columns: int
    scales: tuple[Tensor, ...]
    zeros: Tensor | None
    minimums: tuple[Tensor, ...]
    perm: Tensor | None

    @classmethod
    def from_quantized(cls, qt: QuantizedTensor) -> Self:
        """Pack the codes of a tensor [N, K]."""
        assert qt.codes.dim() == 2, qt.shape
        words = pack(qt.codes, qt.scheme.bits)
        return cls(qt.scheme, words, qt.shape[-1], qt.scales, qt.zeros, qt.minimums, qt.perm)

    @property
    def shape(self) -> tuple[int, int]:
        """[N, K]."""
        return self.words.shape[0], self.columns

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        held = (self.words, *self.scales, *self.minimums, self.zeros, self.perm)
        return sum(t.numel() * t.element_size() for t in held if t is not None)

    def rows(self, index: slice | Tensor) -> QuantizedTensor:
        """The selected rows, unpacked: a slice of N, or a tensor of row numbers."""
        return QuantizedTensor(
            self.scheme,
            unpack(self.words[index], self.scheme.bits, self.columns),
            tuple(s[index] for s in self.scales),
            None if self.zeros is None else self.zeros[index],
            tuple(m[index] for m in self.minimums),
            self.perm,
        )
