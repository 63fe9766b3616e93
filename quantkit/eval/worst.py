"""Where a model is worst: the positions and windows that a person should look at."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from quantkit.core.tokenizer import Tokenizer
from quantkit.eval.tally import locate
from quantkit.eval.windows import Window, offsets

NUM_POSITIONS = 10
NUM_WINDOWS = 5
_CONTEXT_TOKENS = 16
_EXCERPT_CHARS = 120


@dataclass(frozen=True)
class WorstPosition:
    """One scored position.

    Attributes:
        source, token: document, and index of the predicted token in it.
        value: divergence there, or without a baseline the negative log-likelihood; nats.
        context: the text just before.
        target: the text's own token.
        predicted: the model's likeliest token.
        predicted_baseline: the baseline's.
    """

    source: str
    token: int
    value: float
    context: str
    target: str
    predicted: str
    predicted_baseline: str | None


@dataclass(frozen=True)
class WorstWindow:
    """One window: its document, index of its first token, mean value and beginning of its text."""

    source: str
    start: int
    value: float
    excerpt: str


def worst_positions(
    values: Tensor,
    windows: Sequence[Window],
    tokenizer: Tokenizer,
    best: Tensor,
    best_baseline: Tensor | None,
) -> tuple[WorstPosition, ...]:
    """The positions of the largest values, largest first.

    Args:
        values: float64 [S], one per scored position.
        windows: W windows.
        tokenizer: of the text.
        best: the model's likeliest token at each position, int64 [S].
        best_baseline: the baseline's.
    """
    found = []
    begins = offsets(windows)
    for at in _largest(values, NUM_POSITIONS):
        number, token = locate(at, windows, begins)
        window = windows[number]
        ids = window.ids.tolist()
        found.append(
            WorstPosition(
                window.source,
                window.start + token,
                float(values[at]),
                tokenizer.decode(ids[max(0, token - _CONTEXT_TOKENS) : token]),
                tokenizer.decode([ids[token]]),
                tokenizer.decode([int(best[at])]),
                None if best_baseline is None else tokenizer.decode([int(best_baseline[at])]),
            )
        )
    return tuple(found)


def worst_windows(
    values: Tensor, windows: Sequence[Window], tokenizer: Tokenizer
) -> tuple[WorstWindow, ...]:
    """The windows of the largest mean value, largest first."""
    edges = pairwise(offsets(windows))
    means = torch.stack([values[begin:end].mean() for begin, end in edges])
    return tuple(
        WorstWindow(
            windows[number].source,
            windows[number].start,
            float(means[number]),
            tokenizer.decode(windows[number].ids.tolist())[:_EXCERPT_CHARS],
        )
        for number in _largest(means, NUM_WINDOWS)
    )


def _largest(values: Tensor, count: int) -> list[int]:
    """Indices of the largest values above zero, the earlier first where they are equal."""
    order = values.argsort(descending=True, stable=True)
    return [int(index) for index in order[:count] if values[index] > 0]
