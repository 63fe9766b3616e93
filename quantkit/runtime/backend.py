"""Backend: the operations on the paged cache that differ from device to device.

The reference is plain torch, runs everywhere and is the oracle for the others.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from quantkit.models.attention import attend
from quantkit.runtime.kv import KVCache, KVSpec
from quantkit.runtime.step import StepInput


@dataclass(frozen=True, eq=False)
class AttentionMeta:
    """Where the rows of a step stand, for any mix of prompts, chunks and generated tokens.

    Attributes:
        slots: cache slot of each row [T].
        query_starts: first row of each request, and T at the end [S + 1].
        seq_lens: tokens of each request in the cache, the step's included [S].
        block_tables: block ids of each request [S] of [...].
    """

    slots: Tensor
    query_starts: list[int]
    seq_lens: list[int]
    block_tables: list[Tensor]

    @classmethod
    def of(cls, step: StepInput, device: torch.device) -> "AttentionMeta":
        """Move what a step says about the cache to a device."""
        return cls(
            slots=torch.tensor(step.slots, device=device),
            query_starts=step.query_starts,
            seq_lens=step.seq_lens,
            block_tables=[torch.tensor(table, device=device) for table in step.block_tables],
        )


class Backend(Protocol):
    """What a device has to offer."""

    name: str

    def alloc_kv(self, spec: KVSpec, num_blocks: int) -> KVCache:
        """A cache of ``num_blocks`` blocks and the null block."""
        ...

    def write_kv(self, kv: KVCache, layer: int, k: Tensor, v: Tensor, meta: AttentionMeta) -> None:
        """Store rotated keys and values [T, Hk, D] of a layer in their slots."""
        ...

    def attention(
        self,
        q: Tensor,
        kv: KVCache,
        layer: int,
        meta: AttentionMeta,
        *,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """Attention of queries [T, H, D] to the cached tokens of their requests -> [T, H, D]."""
        ...


class ReferenceBackend:
    """Plain torch, one request after the other."""

    name = "reference"

    def alloc_kv(self, spec: KVSpec, num_blocks: int) -> KVCache:
        return KVCache(spec, num_blocks)

    def write_kv(self, kv: KVCache, layer: int, k: Tensor, v: Tensor, meta: AttentionMeta) -> None:
        kv.write(layer, k, v, meta.slots)

    def attention(
        self,
        q: Tensor,
        kv: KVCache,
        layer: int,
        meta: AttentionMeta,
        *,
        scale: float,
        window: int | None,
    ) -> Tensor:
        out = torch.empty_like(q)
        starts = meta.query_starts
        for s, (length, table) in enumerate(zip(meta.seq_lens, meta.block_tables, strict=True)):
            rows = slice(starts[s], starts[s + 1])
            first = _first_block(length, rows.stop - rows.start, window, kv.spec.block_size)
            k, v = kv.gather(layer, table[first:], length - first * kv.spec.block_size)
            out[rows] = attend(q[rows], k, v, scale, window)
        return out


def _first_block(length: int, num_queries: int, window: int | None, block_size: int) -> int:
    """First block that any of the newest ``num_queries`` tokens can see."""
    if window is None:
        return 0
    return max(0, length - num_queries - window + 1) // block_size
