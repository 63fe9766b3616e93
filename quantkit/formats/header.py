"""The header of a safetensors file, read and checked before any byte of a tensor is trusted.

Layout: 8 bytes little-endian length n, n bytes of JSON {name: {dtype, shape, data_offsets}}, then
the data; offsets count from the end of the header, and tensors fill the data without gaps or
overlap (https://huggingface.co/docs/safetensors).
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quantkit.errors import ModelError
from quantkit.formats.access import reading
from quantkit.formats.damage import likely_cause

MAX_HEADER_BYTES = 100_000_000
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F64": torch.float64,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class FileTensor:
    """One tensor as a weight file declares it.

    Attributes:
        name: name in the file.
        dtype: element type.
        shape: shape in the file.
        file: name of the file, below the model folder.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    file: str

    @property
    def nbytes(self) -> int:
        """Bytes of the data."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def stored(self) -> str:
        """Element type as safetensors names it."""
        return DTYPE_NAMES.get(self.dtype, str(self.dtype).removeprefix("torch."))


def read_header(path: Path) -> dict[str, FileTensor]:
    """Tensors of a safetensors file, in the order of their data.

    Raises:
        ModelError: the file is not a whole, sound safetensors file; bytes after the last tensor
            count as damage too.
    """
    with reading(path):
        if not path.is_file():
            raise ModelError(
                f"{path} is not a regular file" if path.exists() else f"{path} is missing"
            )
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(8)
            length = int.from_bytes(head, "little")
            sound = len(head) == 8 and 0 < length <= min(size - 8, MAX_HEADER_BYTES)
            text = file.read(length if sound else 56)
    if not sound:
        _refuse_length(path, size, length, head + text)
    entries = _parse(path, text)
    spans = [_check_entry(path, name, value) for name, value in entries.items()]
    spans.sort(key=lambda span: span[1:])
    _check_layout(path, spans, size - 8 - length)
    if not spans:
        raise ModelError(f"{path} holds no tensors", hint="the file was saved without any weight")
    return {tensor.name: tensor for tensor, _, _ in spans}


def _refuse_length(path: Path, size: int, length: int, head: bytes) -> None:
    cause, hint = likely_cause(head)
    if size < 8:
        reason = f"is cut off: {size} bytes" if size else "is empty"
    elif length == 0:
        reason = "declares a header of 0 bytes"
    elif length > size - 8:
        reason = f"declares a header of {length} bytes but has only {size} bytes"
    else:
        reason = f"declares a header of {length} bytes, more than the {MAX_HEADER_BYTES} allowed"
    raise ModelError(f"{path} is not a whole safetensors file{cause}: it {reason}", hint=hint)


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    """The JSON object without its metadata."""

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in found if names.count(name) > 1)
            raise ModelError(f"{path}: the header names {twice!r} twice")
        return found

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=refuse_duplicates)
    except (ValueError, RecursionError):
        cause, hint = likely_cause(text[:64])
        raise ModelError(
            f"{path} is not a safetensors file{cause}: its header is not JSON", hint=hint
        ) from None
    if not isinstance(header, dict):
        raise ModelError(
            f"{path}: the header is a JSON {type(header).__name__}, expected an object"
        )
    metadata = header.pop("__metadata__", None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        raise ModelError(f"{path}: __metadata__ is not a table of strings")
    return header


def _check_entry(path: Path, name: str, value: Any) -> tuple[FileTensor, int, int]:
    """The tensor with its first byte and its end."""
    where = f"{path}: tensor {name!r}"
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise ModelError(f"{where} is not declared by dtype, shape and data_offsets")
    dtype = DTYPES.get(value["dtype"]) if isinstance(value["dtype"], str) else None
    if dtype is None:
        raise ModelError(f"{where} has the unknown dtype {value['dtype']!r}")
    shape, offsets = value["shape"], value["data_offsets"]
    if not _is_sizes(shape) or len(shape) > 8:
        raise ModelError(f"{where} has the shape {_short(shape)}, expected up to 8 sizes")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ModelError(f"{where} has the offsets {_short(offsets)}, expected [start, end]")
    tensor = FileTensor(name, dtype, tuple(shape), path.name)
    start, end = offsets
    if tensor.nbytes != end - start:
        raise ModelError(
            f"{where}: {tensor.stored} {_short(shape)} takes {tensor.nbytes} bytes, "
            f"but the offsets span {end - start}"
        )
    return tensor, start, end


def _check_layout(path: Path, spans: list[tuple[FileTensor, int, int]], data: int) -> None:
    """Tensors must tile the ``data`` bytes that follow the header."""
    position = 0
    for tensor, start, end in spans:
        if start != position:
            what = "overlaps the tensor before it" if start < position else "leaves a gap before it"
            raise ModelError(
                f"{path}: tensor {tensor.name!r} {what} (offset {start}, not {position})"
            )
        if end > data:
            raise ModelError(
                f"{path} is cut off: tensor {tensor.name!r} ends at byte {end} of the data, "
                f"the file has {data}",
                hint="the download or copy was interrupted; fetch the file again",
            )
        position = end
    if position < data:
        raise ModelError(
            f"{path} has {data - position} bytes after its last tensor",
            hint="something was appended to the file; fetch it again",
        )


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
