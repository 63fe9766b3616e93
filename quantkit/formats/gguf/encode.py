"""Bytes of a GGUF header: metadata entries and the tensor table."""

import struct
from collections.abc import Sequence

import numpy as np
from gguf.constants import GGUFValueType

from quantkit.formats.gguf.container import (
    DEFAULT_ALIGNMENT,
    MAGIC,
    SCALARS,
    VERSIONS,
    TensorEntry,
    align,
)


class MetadataBuilder:
    """Metadata entries in the order of writing, each already in the bytes of the file.

    Attributes:
        entries: key -> type and value in bytes.
    """

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}

    def integer(self, key: str, value: int) -> None:
        """An unsigned number of 32 bits."""
        self._scalar(key, GGUFValueType.UINT32, value)

    def real(self, key: str, value: float) -> None:
        """A float32."""
        self._scalar(key, GGUFValueType.FLOAT32, value)

    def flag(self, key: str, value: bool) -> None:
        """True or false."""
        self._scalar(key, GGUFValueType.BOOL, value)

    def text(self, key: str, value: str) -> None:
        """A string."""
        self._add(key, GGUFValueType.STRING, _string(value))

    def texts(self, key: str, values: Sequence[str]) -> None:
        """A list of strings."""
        items = b"".join(map(_string, values))
        self._array(key, GGUFValueType.STRING, len(values), items)

    def integers(self, key: str, values: Sequence[int]) -> None:
        """A list of signed numbers of 32 bits."""
        items = np.asarray(values, "<i4").tobytes()
        self._array(key, GGUFValueType.INT32, len(values), items)

    def reals(self, key: str, values: Sequence[float]) -> None:
        """A list of float32."""
        items = np.asarray(values, "<f4").tobytes()
        self._array(key, GGUFValueType.FLOAT32, len(values), items)

    def _scalar(self, key: str, kind: GGUFValueType, value: float) -> None:
        self._add(key, kind, struct.pack(SCALARS[kind], value))

    def _array(self, key: str, kind: GGUFValueType, count: int, items: bytes) -> None:
        self._add(key, GGUFValueType.ARRAY, struct.pack("<IQ", kind, count) + items)

    def _add(self, key: str, kind: GGUFValueType, value: bytes) -> None:
        assert key not in self.entries, key
        self.entries[key] = struct.pack("<I", kind) + value


def encode_header(metadata: MetadataBuilder, tensors: Sequence[TensorEntry]) -> bytes:
    """Everything before the data section, padded to where it begins.

    Args:
        metadata: the entries.
        tensors: the table; offsets count from the start of the data section.
    """
    parts = [MAGIC, struct.pack("<IQQ", VERSIONS[-1], len(tensors), len(metadata.entries))]
    for key, value in metadata.entries.items():
        parts += [_string(key), value]
    for tensor in tensors:
        sizes = tuple(reversed(tensor.shape))
        parts.append(_string(tensor.name))
        parts.append(struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes))
        parts.append(struct.pack("<IQ", tensor.type, tensor.offset))
    header = b"".join(parts)
    return header.ljust(align(len(header), DEFAULT_ALIGNMENT), b"\0")


def string_offset(metadata: MetadataBuilder, key: str) -> int:
    """Where the bytes of a string value begin in the header."""
    at = len(MAGIC) + struct.calcsize("<IQQ")
    for name, value in metadata.entries.items():
        at += len(_string(name))
        if name == key:
            return at + struct.calcsize("<IQ")
        at += len(value)
    raise KeyError(key)


def _string(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data
