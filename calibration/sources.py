"""From the name of a data set to its documents: files, folders, `builtin`, names of the hub.

A name that is a path on this machine, or looks like one, is never looked up elsewhere.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from quantkit.calibration import builtin, hub
from quantkit.calibration.document import Document, Draw, long_last, record_document
from quantkit.calibration.textfile import (
    DEFAULT_BUDGET_BYTES,
    read_pieces,
    split_text,
    squeeze_blank_lines,
)
from quantkit.errors import DataError, UsageError

BUILTIN = "builtin"
MAX_RECORD_BYTES = 64 << 20

Reader = Callable[[Sequence[Path], Draw], Iterator[Document]]

# Files that go with the data in a folder but are none.
_NO_DATA = re.compile(r"\.|readme|license|dataset_infos?\.json", re.IGNORECASE)
_FILE_SUFFIX = re.compile(r"\.(?!v\d+$)[A-Za-z][A-Za-z0-9]{0,6}$")


@dataclass(frozen=True)
class Stream:
    """One kind of text within a source: its name, its share of it, and how to draw documents."""

    name: str
    share: float
    documents: Callable[[Draw], Iterator[Document]]


@dataclass(frozen=True)
class Source:
    """A data set as it was named, and its streams, whose shares add up to 1."""

    name: str
    streams: tuple[Stream, ...]


def looks_like_path(name: str) -> bool:
    """Whether a name can only be meant as a path: it says so, or it ends like a file."""
    return name.startswith((".", "/", "~")) or "\\" in name or bool(_FILE_SUFFIX.search(name))


def open_source(name: str, split: str) -> Source:
    """Find out what `name` is; nothing is read before documents are drawn.

    Args:
        name: `builtin`, a file, a folder, or NAME[:CONFIG[:SPLIT]] of a data set.
        split: "calibration" or "evaluation"; decides the part of `builtin`, and the split of a data
            set that comes without one.

    Raises:
        DataError: a path that does not exist, or a folder without data.
        UsageError: a name that is neither a path nor the name of a data set.
    """
    if name == BUILTIN:
        return Source(
            name,
            tuple(
                Stream(kind.name, kind.share, _builtin_documents(kind.name, split))
                for kind in builtin.KINDS
            ),
        )
    path = Path(name).expanduser()
    if path.is_dir():
        return _open_folder(name, path, split)
    if path.exists():
        suffix = path.suffix.lower()
        reader = next((r for _, suffixes, r in _READERS if suffix in suffixes), _text_documents)
        return _single(name, partial(reader, [path]))
    if looks_like_path(name):
        raise DataError(
            f"{name}: no such file or folder",
            hint="give a text, JSONL or Parquet file, a folder of those, or `builtin`",
        )
    if "://" in name or not name.strip():
        raise UsageError(
            f"{name!r} names no data set",
            hint="give `builtin`, a file, a folder, or NAME:CONFIG:SPLIT of a data set",
        )
    return _single(name, lambda draw: hub.named_documents(name, split, draw))


def _single(name: str, documents: Callable[[Draw], Iterator[Document]]) -> Source:
    return Source(name, (Stream(name, 1.0, documents),))


def _builtin_documents(kind: str, split: str) -> Callable[[Draw], Iterator[Document]]:
    def documents(draw: Draw) -> Iterator[Document]:
        found = [each for each in builtin.builtin_documents(split) if each.kind == kind]
        picked = (found[index] for index in draw.order(len(found)))
        yield from long_last(
            (Document(each.name, each.text, each.messages) for each in picked), draw.part_chars
        )

    return documents


def _open_folder(name: str, path: Path, split: str) -> Source:
    """A folder: a saved data set, or files, each kind with a share by its bytes."""
    if hub.is_saved_dataset(path):
        return _single(name, lambda draw: hub.saved_documents(path, split, draw))
    files = [
        file
        for file in sorted(path.rglob("*"))
        if file.suffix.lower() in _FOLDER_SUFFIXES
        and file.is_file()
        and not any(_NO_DATA.match(part) for part in file.relative_to(path).parts)
    ]
    if not files:
        raise DataError(
            f"{path}: no data in this folder",
            hint=f"it may hold a data set saved to disk, or files {' '.join(_FOLDER_SUFFIXES)}",
        )
    streams = []
    total_bytes = max(1, sum(file.stat().st_size for file in files))
    for kind, suffixes, reader in _READERS:
        chosen = [file for file in files if file.suffix.lower() in suffixes]
        if chosen:
            share = sum(file.stat().st_size for file in chosen) / total_bytes
            streams.append(Stream(kind, share, partial(reader, chosen)))
    return Source(name, tuple(streams))


def _budget_bytes(draw: Draw, num_files: int) -> int:
    """How much of each file may be read: 16 bytes per token wanted, and at least 32 MiB in all."""
    return max(DEFAULT_BUDGET_BYTES, 16 * draw.num_tokens) // num_files


def _text_documents(paths: Sequence[Path], draw: Draw) -> Iterator[Document]:
    """Parts of plain text files in a seeded order; without packing, their lines.

    A plain text file is one stream: it is cut at empty lines or line ends into parts of some
    windows each. Blank lines are no documents.
    """
    parts: list[Document] = []
    for path in paths:
        for piece in read_pieces(path, _budget_bytes(draw, len(paths))):
            if draw.pack:
                texts = split_text(squeeze_blank_lines(piece.text), draw.part_chars)
            else:
                texts = piece.text.split("\n")
            parts.extend(Document(str(path), text) for text in texts if text.strip())
    yield from (parts[index] for index in draw.order(len(parts)))


def _record_documents(paths: Sequence[Path], draw: Draw) -> Iterator[Document]:
    """Records of JSON Lines files, or of one JSON array, in a seeded order."""
    records: list[tuple[str, str | dict[str, Any]]] = []
    for path in paths:
        for piece in read_pieces(path, _budget_bytes(draw, len(paths)), MAX_RECORD_BYTES):
            if path.suffix.lower() == ".json" and piece.text.lstrip().startswith("["):
                records.extend(_array_records(path))
                break
            for number, line in enumerate(piece.text.split("\n")):
                if line.strip():
                    records.append((piece.where(number), line))
    documents = (_parse(*records[index]) for index in draw.order(len(records)))
    yield from long_last(documents, draw.part_chars)


def _parse(where: str, record: str | dict[str, Any]) -> Document:
    if isinstance(record, str):
        try:
            record = json.loads(record)
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(
                f"{where}: not JSON ({error})",
                hint="JSONL holds one object per line; plain text belongs in a .txt file",
            ) from None
    return record_document(record, where)


def _array_records(path: Path) -> list[tuple[str, Any]]:
    (piece,) = read_pieces(path, budget_bytes=1 << 62)
    try:
        array = json.loads(piece.text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error})") from None
    return [(f"{path}, record {number + 1}", record) for number, record in enumerate(array)]


# What the suffixes in a folder mean. A file named by itself is plain text if it has none of them.
_READERS: tuple[tuple[str, tuple[str, ...], Reader], ...] = (
    ("text", (".txt", ".text", ".md"), _text_documents),
    ("records", (".jsonl", ".ndjson", ".json"), _record_documents),
    ("tables", (".parquet",), hub.parquet_documents),
)
_FOLDER_SUFFIXES = tuple(suffix for _, suffixes, _ in _READERS for suffix in suffixes)
