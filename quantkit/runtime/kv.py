"""The paged cache of keys and values, and how many blocks of it fit into memory."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quantkit.core.config import ModelConfig

CPU_FRACTION = 0.5
"""Share of the available main memory that the cache may take; other programs need the rest."""

CUDA_FRACTION = 0.8
"""Share of a graphics card's free memory that the cache may take; a step needs the rest."""


@dataclass(frozen=True)
class KVSpec:
    """Shape and type of a cache.

    Attributes:
        block_size: tokens in a block.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(
        cls, config: ModelConfig, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> "KVSpec":
        """The cache that a model needs."""
        return cls(
            config.num_layers, config.num_kv_heads, config.head_dim, block_size, dtype, device
        )

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the keys and values of one token, all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize


class KVCache:
    """Keys and values of all layers in blocks.

    Args:
        spec: shape and type.
        num_blocks: blocks that requests may hold; block 0, for padding, comes on top.
    """

    def __init__(self, spec: KVSpec, num_blocks: int) -> None:
        self.spec = spec
        shape = (num_blocks + 1, spec.block_size, spec.num_kv_heads, spec.head_dim)
        self.k = [_zeros(shape, spec) for _ in range(spec.num_layers)]
        self.v = [_zeros(shape, spec) for _ in range(spec.num_layers)]

    def write(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Store keys and values [T, Hk, D] in slots [T]."""
        self.k[layer].flatten(0, 1).index_copy_(0, slots, k.to(self.spec.dtype))
        self.v[layer].flatten(0, 1).index_copy_(0, slots, v.to(self.spec.dtype))

    def gather(self, layer: int, table: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values [length, Hk, D] of the blocks of a table [...], in order."""
        return (
            self.k[layer].index_select(0, table).flatten(0, 1)[:length],
            self.v[layer].index_select(0, table).flatten(0, 1)[:length],
        )


def _zeros(shape: tuple[int, ...], spec: KVSpec) -> Tensor:
    """Zeros that, in main memory, take no page before it is written: an idle server stays small."""
    if spec.device.type != "cpu":
        return torch.zeros(shape, dtype=spec.dtype, device=spec.device)
    pages = np.zeros(math.prod(shape) * spec.dtype.itemsize, np.uint8)  # torch.zeros writes them
    return torch.from_numpy(pages).view(spec.dtype).view(shape)


def available_bytes(device: torch.device) -> int:
    """Memory that the cache may take: a fixed share of what is available now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * CUDA_FRACTION)
    return int(_available_main_memory() * CPU_FRACTION)


def _available_main_memory(root: Path = Path("/")) -> int:
    """Bytes that can be allocated without swapping, a container's limit respected."""
    limits = []
    meminfo = _read(root / "proc/meminfo")
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) * 1024)
    group = root / "sys/fs/cgroup"
    limit, used = _read(group / "memory.max").strip(), _read(group / "memory.current").strip()
    if limit.isdigit() and used.isdigit():
        limits.append(max(0, int(limit) - int(used) + _file_cache(_read(group / "memory.stat"))))
    if limits:
        return min(limits)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _file_cache(stat: str) -> int:
    """Bytes of a container's use that are only cached files, which the kernel gives up."""
    for line in stat.splitlines():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
