"""Rotary position embedding (Su et al., 2021), with the rescalings that configs ask for."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from quantkit.core.config import Rope


@dataclass(frozen=True)
class Rotary:
    """Cosines and sines of a step's positions, [T, dim / 2], float32."""

    cos: Tensor
    sin: Tensor


def frequencies(rope: Rope) -> Tensor:
    """Angular frequency of each channel pair, [dim / 2], float32, rescaled by ``rope.kind``."""
    exponent = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    base = 1.0 / (rope.theta**exponent)
    if rope.kind == "linear":
        return base / rope.factor
    if rope.kind == "llama3":
        return _llama3(base, rope)
    return base


def _llama3(base: Tensor, rope: Rope) -> Tensor:
    """Llama 3.1: low frequencies divided by the factor, high ones kept, a ramp between."""
    wavelength = 2 * math.pi / base
    low = rope.original_positions / rope.low_freq_factor
    high = rope.original_positions / rope.high_freq_factor
    ramp = (rope.original_positions / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    between = (1 - ramp) * base / rope.factor + ramp * base
    scaled = torch.where(wavelength > low, base / rope.factor, base)
    return torch.where((wavelength <= low) & (wavelength >= high), between, scaled)


def rotary(rope: Rope, positions: Tensor) -> Rotary:
    """Cosines and sines for positions [T]."""
    angles = positions.to(torch.float32)[:, None] * frequencies(rope).to(positions.device)
    return Rotary(angles.cos(), angles.sin())


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotate the first ``dim`` channels of heads x [T, H, D]; pairs are (i, i + dim / 2)."""
    half = rotary.cos.shape[-1]
    compute = torch.promote_types(x.dtype, torch.float32)
    cos, sin = rotary.cos[:, None].to(compute), rotary.sin[:, None].to(compute)
    left, right, rest = (
        x[..., :half].to(compute),
        x[..., half : 2 * half].to(compute),
        x[..., 2 * half :],
    )
    turned = torch.cat((left * cos - right * sin, right * cos + left * sin), -1).to(x.dtype)
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned
