"""Negative log-likelihood of tokens, and perplexity, in float64 over the model's logits."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from quantkit.errors import ModelError

# A float64 copy of this many bytes is worked on at a time: vocabularies reach 256k.
_CHUNK_BYTES = 32 << 20
_MAX_NLL = 700.0  # exp of more is no longer a float64


def row_chunks(rows: int, columns: int, item_bytes: int, chunk_bytes: int) -> Iterator[slice]:
    """Slices of [0, rows) so that each has at most `chunk_bytes` (at least one row)."""
    step = max(1, chunk_bytes // max(1, columns * item_bytes))
    for begin in range(0, rows, step):
        yield slice(begin, min(rows, begin + step))


def token_nll(logits: Tensor, targets: Tensor) -> Tensor:
    """Negative log-likelihood of one target per row, in nats.

    Args:
        logits: float [R, V].
        targets: int64 [R].

    Returns:
        float64 [R].
    """
    out = torch.empty(logits.shape[0], dtype=torch.float64, device=logits.device)
    for rows in row_chunks(logits.shape[0], logits.shape[1], 8, _CHUNK_BYTES):
        wide = logits[rows].double()
        chosen = wide.gather(1, targets[rows, None]).squeeze(1)
        out[rows] = wide.logsumexp(1) - chosen
    return out


def perplexity(mean_nll: float, name: str) -> float:
    """exp of a mean negative log-likelihood (or of a difference of two).

    Raises:
        ModelError: the number would not be finite; `name` says whose it is.
    """
    if not mean_nll < _MAX_NLL:
        raise ModelError(
            f"{name}: the mean negative log-likelihood is {mean_nll:.6g} nats per token, "
            "too large for a perplexity",
            hint="the weights are damaged or do not fit the config",
        )
    return math.exp(mean_nll)


def standard_error(values: Tensor) -> float:
    """Standard error of the mean, positions taken as independent; 0 for a single one."""
    count = values.numel()
    return float(values.std(correction=1)) / math.sqrt(count) if count > 1 else 0.0
