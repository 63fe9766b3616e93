"""Kullback-Leibler divergence and top-1 agreement between two models' next-token distributions.

KL(P || Q) = sum_v P(v) (log P(v) - log Q(v)) with P the baseline and Q the model under test, in
nats, per scored position, in float64 over full-precision logits of both. Nothing is stored in a
narrower type or cut off in between, which is known to distort small divergences.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quantkit.eval.perplexity import row_chunks

_CHUNK_BYTES = 32 << 20


def kl_divergence(base: Tensor, other: Tensor) -> Tensor:
    """KL(softmax(base) || softmax(other)) of each row, in nats.

    Where one model pads its vocabulary, the ids that both have are compared, each distribution
    normalized over them; ids beyond belong to no token.

    Args:
        base: float [R, V].
        other: float [R, V'].

    Returns:
        float64 [R]; never negative.
    """
    common = min(base.shape[1], other.shape[1])
    out = torch.empty(base.shape[0], dtype=torch.float64, device=base.device)
    for rows in row_chunks(base.shape[0], common, 8, _CHUNK_BYTES):
        log_p = base[rows, :common].double().log_softmax(1)
        log_q = other[rows, :common].double().log_softmax(1)
        # Rounding of the sum alone can fall below zero, by about 1e-16.
        out[rows] = (log_p.exp() * log_p.sub(log_q)).sum(1).clamp_min_(0.0)
    return out


def best_token(logits: Tensor, vocab_size: int) -> Tensor:
    """Id of the largest of the first `vocab_size` logits of each row [R, V]."""
    return logits[:, :vocab_size].argmax(1)


def percentile(values: Tensor, share: float) -> float:
    """The value that a `share` of the values does not exceed.

    Of n values in rising order it is the one at place share * (n - 1), counted from 0; between two
    places it is interpolated linearly (numpy's default, and llama.cpp's definition).
    """
    return float(np.quantile(values.cpu().numpy(), share))


@dataclass(frozen=True)
class Bin:
    """Positions whose value lies in [low, high)."""

    low: float
    high: float
    count: int


def histogram(values: Tensor, lowest_decade: int = -6, highest_decade: int = 1) -> tuple[Bin, ...]:
    """Counts of values >= 0 in two bins per decade, those below and above in one each."""
    steps = range(2 * lowest_decade, 2 * highest_decade + 1)
    edges = [0.0, *(10.0 ** (step / 2) for step in steps)]
    counts = np.histogram(values.cpu().numpy(), [*edges, math.inf])[0]
    above = max(float(values.max()), edges[-1])
    return tuple(
        Bin(low, high, int(count))
        for low, high, count in zip(edges, [*edges[1:], above], counts, strict=True)
    )
