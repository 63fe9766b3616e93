"""What a kernel is: one implementation of one operation, and the problem it is asked to solve."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.scheme import Scheme
from quantkit.kernels.packed import PackedWeight

Backend = Literal["reference", "cpu", "triton"]


@dataclass(frozen=True)
class LinearProblem:
    """y [T, N] = x [T, K] @ W.T for a quantized W.

    Attributes:
        scheme: value grid of W.
        rows, columns: N and K.
        dtype: type of x and y.
        device: device type, ``cpu`` or ``cuda``.
        permuted: W's columns are stored in another order than x's.
    """

    scheme: Scheme
    rows: int
    columns: int
    dtype: torch.dtype
    device: str
    permuted: bool = False


@dataclass(frozen=True)
class LinearKernel:
    """One implementation of the quantized linear.

    Attributes:
        name: shown by ``quantkit doctor``.
        backend: family of the implementation.
        priority: the highest one that accepts a problem is chosen.
        accepts: why a problem is refused, or None.
        prepare: QuantizedTensor -> the layout that ``run`` reads; called once at load.
        run: (x [T, K], prepared) -> y [T, N] in x's type.
    """

    name: str
    backend: Backend
    priority: int
    accepts: Callable[[LinearProblem], str | None]
    prepare: Callable[[QuantizedTensor], PackedWeight]
    run: Callable[[Tensor, PackedWeight], Tensor]
