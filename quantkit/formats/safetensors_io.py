"""Safetensors files, streamed: one tensor in memory when writing, mapped pages when reading."""

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from quantkit.errors import ModelError
from quantkit.formats.access import reading, writing
from quantkit.formats.header import DTYPE_NAMES, FileTensor

METADATA = {"format": "pt"}


@dataclass(frozen=True)
class Entry:
    """One tensor of a file that is going to be written."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the data."""
        return FileTensor(self.name, self.dtype, self.shape, "").nbytes


class SafetensorsWriter:
    """Writes one safetensors file whose tensors arrive in any order.

    Every offset follows from the entries, so that each tensor goes to its place at once.

    Args:
        path: file to create; it must not exist.
        entries: all tensors of the file, names unique.

    Raises:
        ResourceError: the file cannot be written.
    """

    def __init__(self, path: Path, entries: Sequence[Entry]) -> None:
        self.path = path
        self._entries = {entry.name: entry for entry in entries}
        assert len(self._entries) == len(entries), "two tensors of a file have the same name"
        header, self._offsets = layout(entries)
        self._missing = set(self._entries)
        with writing(path):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._write(memoryview(header), 0)

    @property
    def is_complete(self) -> bool:
        """Whether every tensor has been put."""
        return not self._missing

    def put(self, name: str, tensor: Tensor) -> None:
        """Write one tensor: views, aliases and other devices are fine, its own elements are stored.

        Raises:
            ResourceError: the file cannot be written.
        """
        entry = self._entries[name]
        assert name in self._missing, f"tensor {name} is written twice"
        assert tensor.dtype == entry.dtype, f"{name} is {tensor.dtype}, planned as {entry.dtype}"
        assert tuple(tensor.shape) == entry.shape, (
            f"{name} has shape {tuple(tensor.shape)}, planned as {entry.shape}"
        )
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        self._write(flat.view(torch.uint8).numpy().data, self._offsets[name])
        self._missing.remove(name)

    def close(self) -> None:
        """Bring the complete file to the disk and close it.

        Raises:
            ResourceError: the disk refuses.
        """
        assert not self._missing, f"{self.path} lacks {sorted(self._missing)[:3]}"
        with writing(self.path):
            os.fsync(self._fd)
        self.abort()

    def abort(self) -> None:
        """Close the file as it is."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, data: memoryview, offset: int) -> None:
        with writing(self.path):
            while data:
                written = os.pwrite(self._fd, data, offset)
                data, offset = data[written:], offset + written


def layout(entries: Sequence[Entry]) -> tuple[bytes, dict[str, int]]:
    """Header bytes of a file and the file offset of each tensor.

    Wider element types come first, as the safetensors library does it, so that every tensor is
    aligned to its element.
    """
    ordered = sorted(entries, key=lambda entry: -entry.dtype.itemsize)
    table: dict[str, object] = {"__metadata__": METADATA}
    starts, position = {}, 0
    for entry in ordered:
        end = position + entry.nbytes
        table[entry.name] = {
            "dtype": DTYPE_NAMES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [position, end],
        }
        starts[entry.name], position = position, end
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + start for name, start in starts.items()}


class SafetensorsReader:
    """Reads tensors of a folder's safetensors files through the page cache.

    One file is mapped at a time; a tensor is a view of the map, so that it takes no anonymous
    memory until it is written to.

    Args:
        folder: model folder.
        tensors: name -> where it is; headers have been checked.
    """

    def __init__(self, folder: Path, tensors: Mapping[str, FileTensor]) -> None:
        self._folder = folder
        self._tensors = tensors
        self._lock = threading.Lock()
        self._file = ""
        self._handle: Any = None

    def __call__(self, name: str) -> Tensor:
        """The tensor of that name.

        Raises:
            ModelError: the file changed or vanished since it was opened.
        """
        file = self._tensors[name].file
        path = self._folder / file
        with self._lock, reading(path):
            try:
                if self._handle is None or file != self._file:
                    self._handle, self._file = safe_open(path, framework="pt"), file
                tensor: Tensor = self._handle.get_tensor(name)
            except SafetensorError as error:
                raise ModelError(f"{path}: tensor {name!r} cannot be read: {error}") from None
        return tensor
