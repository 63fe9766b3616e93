"""The paged cache of the reference backend, and how much memory it may take."""

import os
from pathlib import Path

import pytest
import torch

from quantkit.models.attention import attend
from quantkit.runtime.backend import AttentionMeta, ReferenceBackend
from quantkit.runtime.kv import CPU_FRACTION, KVCache, KVSpec, available_bytes
from quantkit.runtime.kv import _available_main_memory as main_memory
from quantkit.runtime.step import StepInput

BLOCK = 4
SPEC = KVSpec(2, 2, 8, BLOCK, torch.float32, torch.device("cpu"))


def _step(lengths: list[int], queries: list[int], tables: list[list[int]]) -> StepInput:
    """A step of the newest ``queries`` tokens of sequences of some lengths."""
    step = StepInput([], [], [], [0], lengths, tables, [])
    for length, count, table in zip(lengths, queries, tables, strict=True):
        at = range(length - count, length)
        step.ids.extend(at)
        step.positions.extend(at)
        step.slots.extend(table[p // BLOCK] * BLOCK + p % BLOCK for p in at)
        step.query_starts.append(len(step.ids))
    return step


@pytest.mark.parametrize("window", [None, 1, 5, 16])
def test_rows_of_all_kinds_in_one_step(window: int | None) -> None:
    """A prompt, a chunk, a verification and a generated token: each attends to its own past."""
    torch.manual_seed(0)
    lengths, queries = [9, 13, 7, 18, 1], [9, 4, 3, 1, 1]
    tables = [[3, 9, 1], [2, 14, 8, 5], [7, 12], [4, 6, 10, 11, 13], [15]]
    backend = ReferenceBackend()
    kv = backend.alloc_kv(SPEC, 16)
    past = [torch.randn(2, length, 2, 8) for length in lengths]  # keys and values
    for layer in range(2):
        whole = AttentionMeta.of(_step(lengths, lengths, tables), SPEC.device)
        shuffled = torch.randperm(sum(lengths))  # slots say where a row goes, not its place
        keys, values = (torch.cat([p[i] for p in past])[shuffled] for i in range(2))
        meta = AttentionMeta(
            whole.slots[shuffled], whole.query_starts, whole.seq_lens, whole.block_tables
        )
        backend.write_kv(kv, layer, keys + layer, values + layer, meta)
    meta = AttentionMeta.of(_step(lengths, queries, tables), SPEC.device)
    q = torch.randn(sum(queries), 4, 8)
    out = backend.attention(q, kv, 1, meta, scale=0.3, window=window)
    for s, (keys, values) in enumerate(past):
        rows = slice(meta.query_starts[s], meta.query_starts[s + 1])
        want = attend(q[rows], keys + 1, values + 1, 0.3, window)
        torch.testing.assert_close(out[rows], want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_unused_cache_takes_no_memory(dtype: torch.dtype) -> None:
    """A cache of a gigabyte adds less than 50 MB to the process, and starts as zeros."""
    spec = KVSpec(4, 8, 64, 16, dtype, torch.device("cpu"))
    before = _resident_bytes()
    kv = KVCache(spec, 2**30 // (16 * spec.bytes_per_token))
    assert _resident_bytes() - before < 50 * 2**20
    assert kv.k[0].dtype == dtype
    assert not kv.k[3][5].any()


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_bytes_per_token() -> None:
    spec = KVSpec(3, 2, 32, 16, torch.bfloat16, torch.device("cpu"))
    assert spec.bytes_per_token == 2 * 3 * 2 * 32 * 2


def test_memory(tmp_path: Path) -> None:
    for folder in ("proc", "sys/fs/cgroup"):
        (tmp_path / folder).mkdir(parents=True)
    group = tmp_path / "sys/fs/cgroup"
    assert main_memory(tmp_path) > 2**20  # nothing known: what the machine has
    (tmp_path / "proc/meminfo").write_text("MemTotal: 99 kB\nMemAvailable:   4096 kB\n")
    assert main_memory(tmp_path) == 4096 * 1024
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("1000\n")
    assert main_memory(tmp_path) == 4096 * 1024
    (group / "memory.max").write_text("500000\n")
    (group / "memory.current").write_text("300000\n")
    assert main_memory(tmp_path) == 200_000
    (group / "memory.stat").write_text("anon 5\ninactive_file 100000\n")
    assert main_memory(tmp_path) == 300_000


def test_the_cache_may_take_a_share_of_it() -> None:
    share = available_bytes(torch.device("cpu")) / main_memory()
    assert abs(share - CPU_FRACTION) < 0.1
