"""Evaluation texts: `builtin`, plain text files and JSONL, tokenized by every model's tokenizer.

A plain text file is one document. In JSONL each record is a document of its own: `text`, or
`messages` rendered by the chat template. No window ever reaches from one document into the next.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from quantkit.calibration.builtin import builtin_text
from quantkit.calibration.document import Document, encode_document, record_document
from quantkit.calibration.textfile import read_pieces
from quantkit.core.tokenizer import Tokenizer
from quantkit.errors import DataError, ModelError, UsageError
from quantkit.eval.windows import MIN_TOKENS, Score, Window, cut_windows

BUILTIN = "builtin"
_RECORD_SUFFIXES = (".jsonl", ".ndjson")
_NOT_READ = (".json", ".parquet", ".gz", ".zst", ".zip")
_HINT = "give a UTF-8 text file, a JSONL file with `text` or `messages`, or `builtin`"
_WHOLE = 1 << 62


@dataclass(frozen=True)
class TextReport:
    """What one text gave.

    Attributes:
        name: as it was asked for.
        num_documents: documents used, at least in part.
        num_dropped: documents of fewer than 2 tokens, which have nothing to score.
        num_tokens: tokens in the windows.
    """

    name: str
    num_documents: int
    num_dropped: int
    num_tokens: int


class Reader(Protocol):
    """A model's name and its tokenizer."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> Tokenizer: ...


def load_windows(
    texts: Sequence[str],
    readers: Sequence[Reader],
    seq_len: int,
    limit: int | None,
    score: Score,
) -> tuple[list[Window], tuple[TextReport, ...]]:
    """Read texts up to the first `limit` windows.

    Args:
        texts: `builtin`, or files.
        readers: tokenizers; all must give the same ids.
        seq_len: tokens per window, L.
        limit: how many windows at most; None for all.
        score: which positions are scored.

    Raises:
        UsageError: no text, or the same one twice.
        DataError: a text cannot be read, or there are not 2 tokens in any document.
        ModelError: two tokenizers disagree.
    """
    if not texts:
        raise UsageError("no evaluation text given", hint=_HINT)
    if len(set(texts)) < len(texts):
        twice = next(name for name in texts if texts.count(name) > 1)
        raise UsageError(f"evaluation text {twice} given twice", hint="name each text once")
    for name in texts:
        if name != BUILTIN:
            _check_path(name)
    windows: list[Window] = []
    reports = []
    longest = 0
    room = math.inf if limit is None else limit
    for name in texts:
        num_documents = num_dropped = 0
        begin = len(windows)
        documents = _documents(name)
        while len(windows) < room and (document := next(documents, None)) is not None:
            ids = _encode(document, readers)
            longest = max(longest, len(ids))
            windows.extend(cut_windows(document.where, ids, seq_len, score))
            num_documents += len(ids) >= MIN_TOKENS
            num_dropped += len(ids) < MIN_TOKENS
        windows = windows[:limit]
        num_tokens = sum(window.ids.numel() for window in windows[begin:])
        reports.append(TextReport(name, num_documents, num_dropped, num_tokens))
    if not windows:
        raise DataError(
            f"{', '.join(texts)}: too short to score: the longest document has {longest} "
            f"token(s), {MIN_TOKENS} are needed",
            hint=_HINT,
        )
    return windows, tuple(reports)


def _check_path(name: str) -> None:
    path = Path(name).expanduser()
    if not path.exists():
        raise DataError(f"{name}: no such file", hint=_HINT)
    if path.is_dir():
        raise DataError(f"{name}: is a folder, not a text", hint=_HINT)
    if path.suffix.lower() in _NOT_READ:
        raise DataError(f"{name}: {path.suffix} files are not read as text", hint=_HINT)


def _documents(name: str) -> Iterator[Document]:
    if name == BUILTIN:
        yield Document(name, builtin_text("evaluation"))
        return
    path = Path(name).expanduser()
    is_records = path.suffix.lower() in _RECORD_SUFFIXES
    for piece in read_pieces(path, _WHOLE):
        if not is_records:
            yield Document(str(path), piece.text)
            continue
        for number, line in enumerate(piece.text.split("\n")):
            if line.strip():
                yield _record(line, piece.where(number))


def _record(line: str, where: str) -> Document:
    try:
        record = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(
            f"{where}: not JSON ({error})",
            hint="JSONL holds one object per line; plain text belongs in a .txt file",
        ) from None
    document = record_document(record, where)
    try:  # JSON may escape half of a surrogate pair, which is no character
        document.content().encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: half a surrogate pair at character {error.start}") from None
    return document


def _encode(document: Document, readers: Sequence[Reader]) -> list[int]:
    first, *others = readers
    ids = _ids(document, first.tokenizer)
    for other in others:
        if (found := _ids(document, other.tokenizer)) != ids:
            raise _disagreement(document.where, first, ids, other, found)
    return ids


def _ids(document: Document, tokenizer: Tokenizer) -> list[int]:
    # encode_document takes a text of blanks for none; here line ends are tokens like others.
    if document.messages:
        return encode_document(document, tokenizer)
    return tokenizer.encode(document.text)


def _disagreement(
    where: str, first: Reader, ids: list[int], other: Reader, found: list[int]
) -> ModelError:
    pairs = zip(ids, found, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(found)))
    told = [
        f"{_token(reader.tokenizer, each, at)} for {reader.name}"
        for reader, each in ((first, ids), (other, found))
    ]
    return ModelError(
        f"the models read different tokens: token {at} of {where} is {told[0]}, {told[1]}",
        hint="compare a model with the one it was made from; their tokenizers must be the same",
    )


def _token(tokenizer: Tokenizer, ids: list[int], at: int) -> str:
    return f"{ids[at]} {tokenizer.decode([ids[at]])!r}" if at < len(ids) else "missing"
