"""GGUF files packed byte by byte, apart from quantkit and gguf-py: any part can be wrong."""

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from gguf.constants import GGMLQuantizationType
from torch import Tensor

MODEL_METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.context_length": 64,
    "llama.embedding_length": 64,
    "llama.block_count": 1,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


def model_tensors(*, hidden: int = 64, seed: int = 0) -> dict[str, Tensor]:
    """Random float32 tensors of a one-block llama under GGUF names."""
    shapes = {
        "token_embd.weight": (48, hidden),
        "blk.0.attn_norm.weight": (hidden,),
        "blk.0.attn_q.weight": (hidden, hidden),
        "blk.0.attn_k.weight": (hidden // 2, hidden),
        "blk.0.attn_v.weight": (hidden // 2, hidden),
        "blk.0.attn_output.weight": (hidden, hidden),
        "blk.0.ffn_norm.weight": (hidden,),
        "blk.0.ffn_gate.weight": (96, hidden),
        "blk.0.ffn_up.weight": (96, hidden),
        "blk.0.ffn_down.weight": (hidden, 96),
        "output_norm.weight": (hidden,),
    }
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def string(text: str | bytes) -> bytes:
    """Length and bytes of a string."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def entry(key: str | bytes, value: Any) -> bytes:
    """One metadata entry; bytes are taken as a ready type and value."""
    if isinstance(value, bytes):
        return string(key) + value
    if isinstance(value, str):
        return string(key) + struct.pack("<I", 8) + string(value)
    if isinstance(value, bool):
        return string(key) + struct.pack("<IB", 7, value)
    if isinstance(value, float):
        return string(key) + struct.pack("<If", 6, value)
    if isinstance(value, list) and value and isinstance(value[0], int):
        return string(key) + struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    if isinstance(value, list):
        items = b"".join(string(item) for item in value)
        return string(key) + struct.pack("<IIQ", 9, 8, len(value)) + items
    return string(key) + struct.pack("<II", 4, value)


@dataclass
class RawTensor:
    """One tensor: what the table says, and its data."""

    name: str | bytes
    kind: int
    shape: tuple[int, ...]
    data: bytes
    offset: int | None = None


@dataclass
class RawModel:
    """A whole file; every number of it can be replaced by a lie."""

    metadata: dict[str, Any] = field(default_factory=lambda: dict(MODEL_METADATA))
    tensors: Any = None
    alignment: int | None = None
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    entry_count: int | None = None
    extra: bytes = b""

    def __post_init__(self) -> None:
        tensors: dict[str, Tensor] = model_tensors() if self.tensors is None else self.tensors
        self.rows = [
            RawTensor(name, 0, tuple(value.shape), value.numpy().tobytes())
            for name, value in tensors.items()
        ]

    def replace(
        self, name: str, kind: GGMLQuantizationType, shape: tuple[int, ...], data: bytes
    ) -> None:
        """Give a tensor another type, shape and data."""
        index = next(i for i, row in enumerate(self.rows) if row.name == name)
        self.rows[index] = RawTensor(name, int(kind), shape, data)

    def pack(self) -> bytes:
        """The bytes of the file."""
        align = self.alignment or 32
        metadata = dict(self.metadata)
        if self.alignment is not None:
            metadata["general.alignment"] = self.alignment
        entries = [entry(key, value) for key, value in metadata.items()]
        table, data = [], b""
        for row in self.rows:
            data = data.ljust(-(-len(data) // align) * align, b"\0")
            offset = len(data) if row.offset is None else row.offset
            sizes = tuple(reversed(row.shape))
            table.append(
                string(row.name)
                + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
                + struct.pack("<IQ", row.kind, offset)
            )
            data += row.data
        tensors = len(self.rows) if self.tensor_count is None else self.tensor_count
        count = len(entries) if self.entry_count is None else self.entry_count
        head = self.magic + struct.pack("<IQQ", self.version, tensors, count)
        head += b"".join(entries) + self.extra + b"".join(table)
        return head.ljust(-(-len(head) // align) * align, b"\0") + data

    def write(self, path: Path) -> Path:
        """Write the file and return its path."""
        path.write_bytes(self.pack())
        return path
