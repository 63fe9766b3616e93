"""Root-mean-square norm."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm (Zhang and Sennrich, 2019) over the last axis.

    Args:
        x: [..., C].
        weight: [C].
        eps: added to the mean square.

    Returns:
        [..., C] in x's type; computed in float32 or wider.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight.to(wide.dtype)).to(x.dtype)
