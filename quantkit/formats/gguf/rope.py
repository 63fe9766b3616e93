"""Llama 3's rescaling of rotary frequencies, which GGUF stores as one divisor per channel pair.

With wavelength w = 2 pi / frequency and original context L: pairs with w < L / high keep their
frequency, pairs with w > L / low are divided by ``factor``, and between them the share
s = (L / w - low) / (high - low) goes from 0 to 1 and the divisor is 1 / ((1 - s) / factor + s).
"""

import math

import numpy as np
import numpy.typing as npt

from quantkit.core.config import Rope

Factors = npt.NDArray[np.float32]

# (L, low, high) and any multiple of all three give the same divisors, so one number is free.
_LOW = 1.0
_TOLERANCE = 1e-5


def llama3_factors(rope: Rope) -> Factors:
    """Divisors of the frequencies, float32 [dim / 2]."""
    turns = rope.original_positions / _wavelengths(rope.theta, rope.dim)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    share = (turns - low) / (high - low)
    between = 1.0 / ((1.0 - share) / rope.factor + share)
    divisors = np.where(turns > high, 1.0, np.where(turns < low, rope.factor, between))
    return divisors.astype(np.float32)


def fit_llama3(
    factors: Factors, theta: float, original_positions: int | None = None
) -> dict[str, float] | None:
    """The rope parameters whose divisors are ``factors``, or None when none are.

    Args:
        factors: divisors [dim / 2].
        theta: base of the frequencies.
        original_positions: context before rescaling, when the file names it.

    Returns:
        ``factor``, ``low_freq_factor``, ``high_freq_factor``, ``original_max_position_embeddings``.
    """
    divisors = factors.astype(np.float64)
    dim = 2 * len(divisors)
    factor = _round(float(divisors.max()))
    if not np.isfinite(divisors).all() or divisors.min() < 1.0 or factor <= 1.0:
        return None
    context = original_positions or 8192
    candidates = [(context, _LOW, 4.0), _solve(divisors, theta, factor, context)]
    for candidate in candidates:
        if candidate is None:
            continue
        positions, low, high = candidate
        rope = Rope(theta, dim, "llama3", factor, low, high, positions)
        if np.allclose(llama3_factors(rope), factors, rtol=_TOLERANCE, atol=0.0):
            return {
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": positions,
            }
    return None


def _solve(
    divisors: npt.NDArray[np.float64], theta: float, factor: float, context: int
) -> tuple[int, float, float] | None:
    """Low and high factor from the pairs between the plateaus, where s is a line over 1 / w."""
    share = (1.0 / divisors - 1.0 / factor) / (1.0 - 1.0 / factor)
    between = (share > 1e-4) & (share < 1.0 - 1e-4)
    if between.sum() < 2:
        return None
    turns = context / _wavelengths(theta, 2 * len(divisors))
    slope, start = np.polyfit(turns[between], share[between], 1)
    if slope <= 0.0:
        return None
    low = -start / slope
    return context, _round(float(low)), _round(float(low + 1.0 / slope))


def _wavelengths(theta: float, dim: int) -> npt.NDArray[np.float64]:
    return 2 * math.pi * theta ** (np.arange(0, dim, 2, dtype=np.float64) / dim)


def _round(value: float) -> float:
    """The nearest value with four significant digits if it is very near, else the value."""
    nice = float(f"{value:.4g}")
    return nice if abs(nice - value) <= 1e-4 * abs(value) else value
