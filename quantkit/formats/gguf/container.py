"""The GGUF container as a reader sees it: metadata and tensor table.

Nothing that the file declares is believed before it is compared with the file's size, so a file of
any content is read or refused in time and memory bounded by its true length. The layout:

    "GGUF", version u32, tensor count u64, entry count u64
    entries:  key string, type u32, value          (string: length u64 and UTF-8 bytes)
    tensors:  name string, dimensions u32, sizes u64 fastest first, type u32, offset u64
    padding to the alignment, then the data section; offsets count from its start
"""

import math
import os
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from quantkit.errors import ModelError
from quantkit.formats.access import reading

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_NAME_BYTES = 63
MAX_DIMS = 4
# Far above what models hold (vocabularies and merges reach half a million entries), and low enough
# that a large hostile file cannot fill the memory.
MAX_ARRAY_ITEMS = 1 << 22
MAX_STRING_BYTES = 1 << 26
MAX_ALIGNMENT = 1 << 20

SCALARS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.BOOL: "<B",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
}
# Smallest sizes of one entry and of one row of the tensor table.
_MIN_ENTRY, _MIN_TENSOR = 8 + 4 + 1, 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True)
class TensorEntry:
    """One row of the tensor table.

    Attributes:
        name: GGUF name, ``blk.0.attn_q.weight``.
        type: storage type.
        shape: sizes, slowest first: [N, K] for a linear.
        offset: where its data begins in the file.
        nbytes: bytes of its data.
        path: the file that holds it (models may be split over several).
    """

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    path: Path


@dataclass(frozen=True)
class Header:
    """Everything before the data section.

    Attributes:
        path: the file.
        metadata: key -> int, float, bool, str or a list of one of them.
        tensors: the tensor table in file order.
        data_start: where the data section begins.
        size: bytes of the file.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: tuple[TensorEntry, ...]
    data_start: int
    size: int


def storage_bytes(kind: GGMLQuantizationType, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor whose rows are full blocks."""
    block, size = GGML_QUANT_SIZES[kind]
    return math.prod(shape) // block * size


def align(position: int, alignment: int) -> int:
    """The first multiple of the alignment at or after a position."""
    return -(-position // alignment) * alignment


def has_magic(path: Path) -> bool:
    """Whether a file begins like GGUF."""
    try:
        with path.open("rb") as stream:
            return stream.read(4) == MAGIC
    except OSError:
        return False


def read_header(path: Path) -> Header:
    """Read and check everything before the data section.

    Bytes after the last tensor are allowed, as in llama.cpp.

    Raises:
        ModelError: the file is not GGUF, damaged, cut, or of a kind that is not supported.
    """
    with reading(path), path.open("rb") as stream:
        return _Cursor(path, stream).header()


class _Cursor:
    """A position in the file that never passes its end."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path = path
        self.stream = stream
        self.size = os.fstat(stream.fileno()).st_size
        self.at = 0

    def fail(self, reason: str, at: int | None = None) -> NoReturn:
        where = self.at if at is None else at
        raise ModelError(
            f"{self.path}: {reason} (at byte {where} of {self.size})",
            hint="the file is damaged or cut; fetch or convert it again",
        )

    def take(self, count: int, what: str) -> bytes:
        if count > self.size - self.at:
            self.fail(f"{what} needs {count} bytes, {self.size - self.at} are left")
        data = self.stream.read(count)
        if len(data) != count:
            self.fail(f"{what}: the file became shorter while it was read")
        self.at += count
        return data

    def number(self, form: str, what: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form), what))[0]

    def string(self, what: str, errors: str = "strict") -> str:
        length = self.number("<Q", f"length of {what}")
        if length > MAX_STRING_BYTES:
            self.fail(f"{what} declares {length} bytes, the limit is {MAX_STRING_BYTES}")
        start, data = self.at, self.take(length, what)
        try:
            return data.decode("utf-8", errors)
        except UnicodeDecodeError:
            self.fail(f"{what} is not valid UTF-8", start)

    def header(self) -> Header:
        if self.size == 0:
            self.fail("the file is empty")
        magic = self.take(4, "magic")
        if magic != MAGIC:
            self.fail(f"not a GGUF file: it begins with {magic!r}, expected {MAGIC!r}", 0)
        version = self.number("<I", "version")
        if version not in VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
                self.fail("big-endian GGUF files are not supported", 4)
            self.fail(f"GGUF version {version} is not supported, versions 2 and 3 are", 4)
        tensor_count = self.count("tensor count", _MIN_TENSOR)
        entry_count = self.count("metadata count", _MIN_ENTRY)
        metadata: dict[str, Any] = {}
        for index in range(entry_count):
            start, key = self.at, self.string(f"key of metadata entry {index}")
            if key in metadata:
                self.fail(f"metadata key {key!r} stands twice", start)
            metadata[key] = self.value(key)
        rows = [self.tensor_row(index) for index in range(tensor_count)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        valid = type(alignment) is int and 0 < alignment <= MAX_ALIGNMENT
        if not valid or alignment & (alignment - 1):
            self.fail(f"general.alignment is {alignment!r}, expected a power of two")
        start = align(self.at, alignment)
        tensors = self.place(rows, start, alignment)
        return Header(self.path, metadata, tensors, start, self.size)

    def count(self, what: str, smallest: int) -> int:
        start, count = self.at, int(self.number("<Q", what))
        room = (self.size - self.at) // smallest
        if count > room:
            self.fail(f"{what} is {count}, the file has room for {room} at most", start)
        return count

    def kind(self, what: str) -> GGUFValueType:
        start, number = self.at, self.number("<I", f"type of {what}")
        try:
            return GGUFValueType(number)
        except ValueError:
            self.fail(f"{what} has the unknown value type {number}", start)

    def value(self, key: str) -> Any:
        kind = self.kind(key)
        # Bad encoding does no harm in a description of the model, but it does in a tokenizer.
        errors = "replace" if key.startswith("general.") else "strict"
        if kind is GGUFValueType.STRING:
            return self.string(key, errors)
        if kind is GGUFValueType.ARRAY:
            return self.array(key, errors)
        return self.scalar(key, kind)

    def scalar(self, key: str, kind: GGUFValueType) -> Any:
        start, number = self.at, self.number(SCALARS[kind], key)
        if kind is not GGUFValueType.BOOL:
            return number
        if number > 1:
            self.fail(f"{key} is {number}, expected 0 or 1 for false or true", start)
        return bool(number)

    def array(self, key: str, errors: str) -> list[Any]:
        kind = self.kind(f"elements of {key}")
        if kind is GGUFValueType.ARRAY:
            self.fail(f"{key} is an array of arrays, which is not supported")
        start, length = self.at, int(self.number("<Q", f"length of {key}"))
        size = 8 if kind is GGUFValueType.STRING else struct.calcsize(SCALARS[kind])
        room = min((self.size - self.at) // size, MAX_ARRAY_ITEMS)
        if length > room:
            self.fail(f"array {key} declares {length} elements, at most {room} are possible", start)
        if kind is GGUFValueType.STRING:
            return [self.string(f"element {i} of {key}", errors) for i in range(length)]
        data = np.frombuffer(self.take(length * size, key), SCALARS[kind])
        if kind is GGUFValueType.BOOL:
            return [bool(item) for item in data]
        items: list[Any] = data.tolist()
        return items

    def tensor_row(self, index: int) -> tuple[str, GGMLQuantizationType, tuple[int, ...], int, int]:
        """Name, type, shape, offset in the data section, and where the row stands."""
        start, name = self.at, self.string(f"name of tensor {index}")
        length = len(name.encode())
        if not 0 < length <= MAX_NAME_BYTES:
            self.fail(
                f"tensor name {name[:80]!r} has {length} bytes, 1 to {MAX_NAME_BYTES} are allowed",
                start,
            )
        at, dims = self.at, self.number("<I", f"dimension count of tensor {name!r}")
        if not 1 <= dims <= MAX_DIMS:
            self.fail(f"tensor {name!r} has {dims} dimensions, 1 to {MAX_DIMS} are allowed", at)
        at = self.at
        sizes = struct.unpack(f"<{dims}Q", self.take(8 * dims, f"sizes of tensor {name!r}"))
        if min(sizes) == 0 or math.prod(sizes) >= 1 << 62:
            self.fail(f"tensor {name!r} has the impossible sizes {list(sizes)}", at)
        at, number = self.at, self.number("<I", f"type of tensor {name!r}")
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            self.fail(f"tensor {name!r} has the unknown type {number}", at)
        block = GGML_QUANT_SIZES[kind][0]
        if sizes[0] % block:
            self.fail(f"tensor {name!r}: rows of {sizes[0]} do not fill {kind.name} blocks", at)
        offset = self.number("<Q", f"offset of tensor {name!r}")
        return name, kind, tuple(reversed(sizes)), offset, start

    def place(self, rows: list[Any], start: int, alignment: int) -> tuple[TensorEntry, ...]:
        """Check extents, names and overlaps of the tensor table."""
        entries: dict[str, TensorEntry] = {}
        for name, kind, shape, offset, at in rows:
            if name in entries:
                self.fail(f"tensor {name!r} stands twice in the tensor table", at)
            if offset % alignment:
                self.fail(f"tensor {name!r} begins at {offset}, no multiple of {alignment}", at)
            nbytes = storage_bytes(kind, shape)
            if start + offset + nbytes > self.size:
                self.fail(
                    f"tensor {name!r} ends at byte {start + offset + nbytes}, "
                    f"the file has {self.size} bytes",
                    at,
                )
            entries[name] = TensorEntry(name, kind, shape, start + offset, nbytes, self.path)
        ordered = sorted(entries.values(), key=lambda entry: entry.offset)
        for before, after in pairwise(ordered):
            if before.offset + before.nbytes > after.offset:
                self.fail(f"tensors {before.name!r} and {after.name!r} overlap", after.offset)
        return tuple(entries.values())
