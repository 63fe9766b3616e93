"""Packing: documents of several streams become windows of equal length.

Each window is begun by the stream that is furthest behind its share, and belongs to it while it
lasts. At the end windows are put in an order in which every stream is spread evenly, so that any
run of windows has about the same mix.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

import torch
from torch import Tensor

from quantkit.calibration.document import Document, Tokenizer, encode_document
from quantkit.calibration.windows import PAD_DOCUMENT, spread_evenly
from quantkit.errors import DataError

MIN_DOCUMENT_TOKENS = 2


@dataclass(eq=False)
class Feed:
    """The state of one stream while it is being packed.

    A document that does not end within a window goes on in the next one of this stream, there as a
    document of its own: positions restart, and what the tokenizer puts before every text (a token
    that says "text begins") is repeated.

    Attributes:
        source: number of the source that the stream belongs to.
        name: of the stream.
        share: of all tokens, between 0 and 1.
        documents: in the order in which they are used.
        num_plain: conversations that were rendered without a chat template.
    """

    source: int
    name: str
    share: float
    documents: Iterator[Document]
    num_documents: int = 0
    num_dropped: int = 0
    num_plain: int = 0
    num_tokens: int = 0
    num_windows: int = 0
    is_exhausted: bool = False
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    _rest: list[int] = field(default_factory=list)

    def take(self, limit: int, tokenizer: Tokenizer, prefix: list[int]) -> list[int]:
        """The next tokens of one document, at most `limit`; none when the stream has ended.

        Args:
            limit: room that is left in the window.
            tokenizer: for the next document.
            prefix: the tokens of an empty text.
        """
        while not self._rest:
            document = next(self.documents, None)
            if document is None:
                self.is_exhausted = True
                return []
            content = _utf8(document)
            ids = encode_document(document, tokenizer)
            if len(ids) < MIN_DOCUMENT_TOKENS:
                self.num_dropped += 1
                continue
            self.num_documents += 1
            self.num_plain += bool(document.messages) and not tokenizer.has_chat_template
            self.digest.update(content + b"\0")
            self._rest = ids
        ids, rest = self._rest[:limit], self._rest[limit:]
        self._rest = _common_start(prefix, ids) + rest if rest else rest
        self.num_tokens += len(ids)
        return ids

    def drop_rest(self) -> None:
        """Leave out the rest of the document that `take` began."""
        self._rest = []


def _utf8(document: Document) -> bytes:
    try:
        return document.content().encode("utf-8")
    except UnicodeEncodeError as error:
        broken = error.object[error.start]
        raise DataError(
            f"{document.where}: half a character, U+{ord(broken):04X}, at position {error.start}",
            hint="write characters above U+FFFF as they are, or as pairs of \\u escapes",
        ) from None


def _common_start(first: list[int], second: list[int]) -> list[int]:
    pairs = zip(first, second, strict=False)
    return [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]


def pack_windows(
    feeds: list[Feed], tokenizer: Tokenizer, num_samples: int, seq_len: int, pack: bool
) -> tuple[Tensor, Tensor]:
    """Fill up to `num_samples` windows of `seq_len` = L tokens.

    With `pack` documents follow one another and only the last window may be partly filled; without,
    each document gives one window, cut at L.

    Returns:
        ids and document numbers, both int64 [W, L] with W <= num_samples.
    """
    rows: list[tuple[Tensor, Tensor]] = []
    owners: list[int] = []
    # A start that fills the whole window would leave no room for text.
    prefix = tokenizer.encode("")[: seq_len - 1]
    for _ in range(num_samples):
        owner, chunks = _window_chunks(feeds, tokenizer, prefix, seq_len, pack)
        if not chunks:
            break
        feeds[owner].num_windows += 1
        rows.append(_row(chunks, seq_len))
        owners.append(owner)
    order = spread_evenly(owners)
    if pack and rows and rows[-1][1][-1] == PAD_DOCUMENT:
        order.remove(len(rows) - 1)
        order.append(len(rows) - 1)
    if not rows:
        empty = torch.zeros(0, seq_len, dtype=torch.int64)
        return empty, empty.clone()
    return (
        torch.stack([rows[index][0] for index in order]),
        torch.stack([rows[index][1] for index in order]),
    )


def _window_chunks(
    feeds: list[Feed], tokenizer: Tokenizer, prefix: list[int], seq_len: int, pack: bool
) -> tuple[int, list[list[int]]]:
    """The chunks of documents of one window, and the index of the stream that began it."""
    chunks: list[list[int]] = []
    owner = -1
    room = seq_len
    current = -1
    while room > 0:
        if current < 0 or feeds[current].is_exhausted:
            live = [index for index, feed in enumerate(feeds) if not feed.is_exhausted]
            if not live:
                break
            current = min(live, key=lambda index: _progress(feeds[index], pack))
        chunk = feeds[current].take(room, tokenizer, prefix)
        if not chunk:
            continue
        owner = current if owner < 0 else owner
        chunks.append(chunk)
        room -= len(chunk)
        if not pack:
            feeds[current].drop_rest()
            break
    return owner, chunks


def _progress(feed: Feed, pack: bool) -> float:
    return (feed.num_tokens if pack else feed.num_windows) / max(feed.share, 1e-9)


def _row(chunks: list[list[int]], seq_len: int) -> tuple[Tensor, Tensor]:
    ids = torch.zeros(seq_len, dtype=torch.int64)
    docs = torch.full((seq_len,), PAD_DOCUMENT, dtype=torch.int64)
    start = 0
    for number, chunk in enumerate(chunks):
        end = start + len(chunk)
        ids[start:end] = torch.tensor(chunk, dtype=torch.int64)
        docs[start:end] = number
        start = end
    return ids, docs
