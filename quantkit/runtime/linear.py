"""PackedLinear and DenseLinear: the weights of one linear, ready for one device."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear as torch_linear

from quantkit.core.qtensor import QuantizedTensor
from quantkit.kernels import LinearKernel, LinearProblem, PackedWeight, choose_linear


@dataclass(frozen=True, eq=False)
class PackedLinear:
    """A quantized linear: the kernel that was chosen and the layout that it prepared."""

    kernel: LinearKernel
    weight: PackedWeight
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, K] -> [T, N]."""
        y = self.kernel.run(x, self.weight)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def take(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows of the matrix as floats, [T] -> [T, K]; an embedding look-up."""
        return self.weight.rows(ids).decode(dtype)


@dataclass(frozen=True, eq=False)
class DenseLinear:
    """A float linear; the weight stays in its file's type and is widened where it is used."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, K] -> [T, N] in x's type."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return torch_linear(x, self.weight.to(x.dtype), bias)

    def take(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows of the matrix, [T] -> [T, K]."""
        return self.weight[ids].to(dtype)


AnyLinear = PackedLinear | DenseLinear


def prepare_linear(
    value: Tensor | QuantizedTensor, bias: Tensor | None, dtype: torch.dtype, device: torch.device
) -> AnyLinear:
    """Make a linear from a checkpoint's tensor [N, K]; ``dtype`` is the type of its inputs."""
    bias = None if bias is None else bias.to(device)
    if isinstance(value, Tensor):
        return DenseLinear(value.to(device), bias)
    rows, columns = value.shape
    problem = LinearProblem(
        value.scheme, rows, columns, dtype, device.type, permuted=value.perm is not None
    )
    kernel = choose_linear(problem)
    return PackedLinear(kernel, kernel.prepare(value), bias)
