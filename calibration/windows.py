"""Token windows: what calibration and evaluation read, with the account of where they came from."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

PAD_DOCUMENT = -1


@dataclass(frozen=True)
class SourceReport:
    """What one source gave.

    Attributes:
        name: as it was asked for.
        num_documents: documents read and used, at least in part.
        num_dropped: documents of fewer than 2 tokens, which were left out.
        tokens_asked: its share of the tokens asked for.
        tokens_used: tokens of it in the windows.
        digest: SHA-256 of the text of the documents used, in the order of their use.
        mix: tokens per kind of text, for a source that has kinds.
    """

    name: str
    num_documents: int
    num_dropped: int
    tokens_asked: int
    tokens_used: int
    digest: str
    mix: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, eq=False)
class Windows:
    """W windows of L tokens each.

    Attributes:
        ids: token ids, int64 [W, L]; 0 at padding.
        docs: number of the document within its window, int64 [W, L]; -1 at padding. A token attends
            to tokens of its own document only.
        sources: one report per source.
        samples_asked: how many windows were asked for.
        tokens_asked: how many tokens that would have been.
        shortfall: one line that says what was missing; None when nothing was.
    """

    ids: Tensor
    docs: Tensor
    sources: tuple[SourceReport, ...]
    samples_asked: int
    tokens_asked: int
    shortfall: str | None = None

    @property
    def num_windows(self) -> int:
        return self.ids.shape[0]

    @property
    def seq_len(self) -> int:
        return self.ids.shape[1]

    @cached_property
    def num_tokens(self) -> int:
        """How many tokens are no padding."""
        return int((self.docs != PAD_DOCUMENT).sum())

    @cached_property
    def digest(self) -> str:
        """SHA-256 over shape, ids and documents."""
        return windows_digest(self.ids, self.docs)

    def positions(self) -> Tensor:
        """Positions within each document, int64 [W, L]; 0 at padding."""
        return document_positions(self.docs)

    def summary(self) -> dict[str, Any]:
        """The account as plain data, for the result's metadata."""
        return {
            "samples_asked": self.samples_asked,
            "samples_used": self.num_windows,
            "seq_len": self.seq_len,
            "tokens_asked": self.tokens_asked,
            "tokens_used": self.num_tokens,
            "shortfall": self.shortfall,
            "digest": self.digest,
            "sources": [
                {
                    "name": source.name,
                    "documents": source.num_documents,
                    "dropped": source.num_dropped,
                    "tokens_asked": source.tokens_asked,
                    "tokens_used": source.tokens_used,
                    "digest": source.digest,
                    "mix": dict(source.mix),
                }
                for source in self.sources
            ],
        }


def document_positions(docs: Tensor) -> Tensor:
    """Count positions from 0 within each document.

    Args:
        docs: document numbers, int64 [W, L]; neighbors differ where a document begins.

    Returns:
        int64 [W, L]; 0 at padding.
    """
    index = torch.arange(docs.shape[1]).expand_as(docs)
    begins = torch.ones_like(docs, dtype=torch.bool)
    begins[:, 1:] = docs[:, 1:] != docs[:, :-1]
    start = torch.where(begins, index, 0).cummax(dim=1).values
    return torch.where(docs == PAD_DOCUMENT, 0, index - start)


def windows_digest(ids: Tensor, docs: Tensor) -> str:
    """SHA-256 over the shape and the little-endian int64 values of both tensors [W, L]."""
    digest = hashlib.sha256(repr(tuple(ids.shape)).encode())
    for tensor in (ids, docs):
        digest.update(tensor.contiguous().numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def spread_evenly(owners: Sequence[int]) -> list[int]:
    """Order of the indices of `owners` in which every owner is spread evenly from first to last."""
    totals: dict[int, int] = {}
    for owner in owners:
        totals[owner] = totals.get(owner, 0) + 1
    seen = dict.fromkeys(totals, 0)
    places: list[tuple[float, int]] = []
    for index, owner in enumerate(owners):
        places.append(((seen[owner] + 0.5) / totals[owner], index))
        seen[owner] += 1
    return [index for _, index in sorted(places)]
