"""Token windows of an evaluation, and which of their positions are scored.

Each document is tokenized once, as one stream, and cut into consecutive windows of L = `seq_len`
tokens; what remains at its end is a shorter window, kept when it has at least 2 tokens. A window
begins with no past: the model sees the tokens of the window only.

Scored positions of a window of L tokens, whatever its length (`predicting token i` means: from the
tokens 0 .. i-1 of the same window):

- `second-half`: predicting token i for i in [max(1, L // 2), L)
- `all`: predicting token i for i in [1, L)
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from quantkit.errors import UsageError

Score = Literal["second-half", "all"]
MIN_TOKENS = 2

SCORED_RULE: dict[str, str] = {
    "second-half": "predicting token i for i in [max(1, L//2), L) of each window of L tokens",
    "all": "predicting token i for i in [1, L) of each window of L tokens",
}


@dataclass(frozen=True, eq=False)
class Window:
    """One window of one document.

    Attributes:
        source: name of the document, for people: `builtin`, `notes.txt`, `data.jsonl, line 3`.
        start: index of its first token within the document.
        ids: token ids, int64 [L], L >= 2.
        first: the first token whose prediction is scored; 1 <= first < L.
    """

    source: str
    start: int
    ids: Tensor
    first: int

    @property
    def num_scored(self) -> int:
        return self.ids.numel() - self.first

    def describe(self, token: int) -> str:
        """Name a token of the window for a message."""
        return f"token {self.start + token} of {self.source}"


def first_scored(length: int, score: Score) -> int:
    """Index of the first scored token of a window of `length` tokens."""
    return 1 if score == "all" else max(1, length // 2)


def check_sizes(seq_len: int, limit: int | None, score: str, batch_size: int | None) -> None:
    """Refuse values that cannot be meant.

    Raises:
        UsageError: it names the value.
    """
    if seq_len < MIN_TOKENS:
        raise UsageError(f"sequence length is {seq_len}, below {MIN_TOKENS}")
    if limit is not None and limit < 1:
        raise UsageError(f"limit is {limit} windows, below 1")
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"batch size is {batch_size}, below 1")
    if score not in get_args(Score):
        raise UsageError(f"score is {score!r}", hint=f"one of: {', '.join(get_args(Score))}")


def cut_windows(source: str, ids: Sequence[int], seq_len: int, score: Score) -> Iterator[Window]:
    """Consecutive windows of one document; none for a document of fewer than 2 tokens."""
    stream = torch.tensor(ids, dtype=torch.int64)
    for start in range(0, len(ids) - MIN_TOKENS + 1, seq_len):
        part = stream[start : start + seq_len]
        yield Window(source, start, part, first_scored(part.numel(), score))


def batches(windows: Sequence[Window], batch_size: int) -> Iterator[list[int]]:
    """Indices of the windows, in batches of equal length so that nothing is ever padded.

    Longer windows come first: a run that cannot fit in memory fails at once.
    """
    by_length: dict[int, list[int]] = {}
    for index, window in enumerate(windows):
        by_length.setdefault(window.ids.numel(), []).append(index)
    for length in sorted(by_length, reverse=True):
        indices = by_length[length]
        for begin in range(0, len(indices), batch_size):
            yield indices[begin : begin + batch_size]


def offsets(windows: Iterable[Window]) -> list[int]:
    """Where the scored positions of each window begin in the list of all of them; W + 1 numbers."""
    found = [0]
    for window in windows:
        found.append(found[-1] + window.num_scored)
    return found


def ids_digest(windows: Iterable[Window]) -> str:
    """SHA-256 over length, first scored token and little-endian int64 ids of every window."""
    digest = hashlib.sha256()
    for window in windows:
        digest.update(f"{window.ids.numel()},{window.first};".encode())
        digest.update(window.ids.numpy().astype("<i8").tobytes())
    return digest.hexdigest()
