"""Stats: what calibration saw at one input group (linears that read the same tensor share one)."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from quantkit.errors import ModelError


@dataclass(eq=False)
class Stats:
    """Sums over the tokens seen, mergeable by addition.

    Attributes:
        num_tokens: tokens counted; padding never is.
        square: sum of squares per input channel [K], float64.
        absmax: largest magnitude per channel [K].
        abssum: sum of magnitudes per channel [K], float64.
        gram: sum of x x^T [K, K] float32, or None when no method needs it.
    """

    num_tokens: int
    square: Tensor
    absmax: Tensor
    abssum: Tensor
    gram: Tensor | None

    @classmethod
    def empty(cls, columns: int, *, with_gram: bool) -> Self:
        """Statistics of no tokens."""
        return cls(
            0,
            torch.zeros(columns, dtype=torch.float64),
            torch.zeros(columns),
            torch.zeros(columns, dtype=torch.float64),
            torch.zeros(columns, columns) if with_gram else None,
        )

    def update(self, x: Tensor) -> None:
        """Add tokens x [T, K]."""
        x = x.to(torch.float32)
        self.num_tokens += x.shape[0]
        if not x.shape[0]:
            return
        magnitude = x.abs()
        self.absmax = torch.maximum(self.absmax, magnitude.amax(0))
        self.abssum += magnitude.sum(0, dtype=torch.float64)
        self.square += x.square().sum(0, dtype=torch.float64)
        if self.gram is not None:
            self.gram.addmm_(x.T, x)

    def merge(self, other: Self) -> None:
        """Add what another set of tokens gave."""
        self.num_tokens += other.num_tokens
        self.absmax = torch.maximum(self.absmax, other.absmax)
        self.abssum += other.abssum
        self.square += other.square
        assert (self.gram is None) == (other.gram is None)
        if self.gram is not None and other.gram is not None:
            self.gram += other.gram

    @property
    def importance(self) -> Tensor:
        """Mean square of each input channel [K], float32."""
        return (self.square / max(1, self.num_tokens)).to(torch.float32)

    def check_finite(self, where: str) -> None:
        """Raise when an input was not finite.

        Raises:
            ModelError: naming ``where``.
        """
        if not bool(torch.isfinite(self.square).all()):
            raise ModelError(
                f"{where}: the inputs hold NaN or infinity",
                hint="check the source with `quantkit eval`; a bf16 model may overflow in float16",
            )
