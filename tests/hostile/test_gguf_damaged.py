"""GGUF files that lie, are cut, or are of another kind: one clear error, fast, in little memory."""

import contextlib
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantkit.errors import ModelError, QuantkitError
from quantkit.formats import open_model
from quantkit.formats.gguf.container import read_header
from tests.helpers.gguf_raw import MODEL_METADATA, RawModel, RawTensor, entry, model_tensors, string

LIES = [2**31, 2**62, 2**63, 2**64 - 1]


def number(value: int, size: int = 8) -> bytes:
    return (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def head(*, version: int = 3, tensors: int = 0, entries: int = 0, magic: bytes = b"GGUF") -> bytes:
    return magic + number(version, 4) + number(tensors) + number(entries)


def tensor_row(name: bytes, dims: int, sizes: list[int], kind: int, offset: int) -> bytes:
    row = string(name) + number(dims, 4) + b"".join(number(size) for size in sizes)
    return row + number(kind, 4) + number(offset)


def hostile_files() -> dict[str, tuple[bytes, str]]:
    """Name -> bytes of at most 200, and what the message must say."""
    key = string("a.b")
    found: dict[str, tuple[bytes, str]] = {
        "empty": (b"", "file is empty"),
        "magic": (head(magic=b"GGML"), r"not a GGUF file.*at byte 0"),
        "short magic": (b"GG", "magic needs 4 bytes"),
        "big endian": (b"GGUF" + (3).to_bytes(4, "big") + bytes(16), "big-endian"),
        "value type": (head(entries=1) + key + number(13, 4) + bytes(16), "unknown value type 13"),
        "bool": (head(entries=1) + key + number(7, 4) + b"\x07" + bytes(8), "a.b is 7"),
        "utf-8": (head(entries=1) + string(b"\xff\xfe") + number(0, 4) + bytes(8), "UTF-8"),
        "nested": (
            head(entries=1) + key + number(9, 4) + (number(9, 4) + number(1)) * 10,
            "array of arrays",
        ),
        "key twice": (head(entries=2) + entry("a", 1) + entry("a", 2), "key 'a' stands twice"),
        "no dims": (head(tensors=1) + tensor_row(b"t", 0, [], 0, 0) + bytes(40), "0 dimensions"),
        "zero size": (head(tensors=1) + tensor_row(b"t", 1, [0], 0, 0) + bytes(40), "impossible"),
        "product": (
            head(tensors=1) + tensor_row(b"t", 4, [2**32] * 4, 0, 0),
            "impossible sizes",
        ),
        "tensor type": (head(tensors=1) + tensor_row(b"t", 1, [8], 99, 0), "unknown type 99"),
        "old type": (head(tensors=1) + tensor_row(b"t", 1, [32], 4, 0), "unknown type 4"),
        "block": (head(tensors=1) + tensor_row(b"t", 1, [48], 2, 0), "48 do not fill Q4_0 blocks"),
        "no name": (head(tensors=1) + tensor_row(b"", 1, [8], 0, 0) + bytes(40), "has 0 bytes"),
        "long name": (head(tensors=1) + tensor_row(b"n" * 70, 1, [8], 0, 0), "has 70 bytes"),
        "offset": (head(tensors=1) + tensor_row(b"t", 1, [1], 0, 4), "no multiple of 32"),
        "alignment": (
            head(tensors=0, entries=1) + entry("general.alignment", 48),
            "general.alignment is 48",
        ),
        "alignment kind": (
            head(tensors=0, entries=1) + entry("general.alignment", "x"),
            "general.alignment is 'x'",
        ),
    }
    for version in (0, 1, 99):
        found[f"version {version}"] = (head(version=version), f"version {version} is not supported")
    for lie in LIES:
        found |= {
            f"entries {lie}": (head(entries=lie) + bytes(40), f"metadata count is {lie}"),
            f"tensors {lie}": (head(tensors=lie) + bytes(40), f"tensor count is {lie}"),
            f"key length {lie}": (head(entries=1) + number(lie) + bytes(40), f"{lie} bytes"),
            f"string {lie}": (
                head(entries=1) + key + number(8, 4) + number(lie) + bytes(9),
                f"a.b declares {lie} bytes",
            ),
            f"array {lie}": (
                head(entries=1) + key + number(9, 4) + number(4, 4) + number(lie) + bytes(9),
                f"array a.b declares {lie} elements",
            ),
            f"strings {lie}": (
                head(entries=1) + key + number(9, 4) + number(8, 4) + number(lie) + bytes(9),
                f"array a.b declares {lie} elements",
            ),
            f"dims {lie}": (
                head(tensors=1) + string("t") + number(lie, 4) + bytes(60),
                f"{lie % 2**32} dimensions",
            ),
            f"size {lie}": (head(tensors=1) + tensor_row(b"t", 1, [lie], 0, 0), r"'t'"),
            f"offset {lie}": (head(tensors=1) + tensor_row(b"t", 1, [8], 0, lie), r"'t'"),
        }
    return found


HOSTILE = hostile_files()


@pytest.mark.parametrize("name", HOSTILE)
def test_small_files_with_large_claims(name: str, tmp_path: Path) -> None:
    """C58: the error names field and place, within a second and without memory."""
    data, match = HOSTILE[name]
    assert len(data) <= 200
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    started = time.perf_counter()
    try:
        with pytest.raises(ModelError, match=match) as caught:
            read_header(path)
        assert time.perf_counter() - started < 1.0
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert str(path) in caught.value.message
    assert "at byte" in caught.value.message
    assert "\n" not in caught.value.message
    with pytest.raises(ModelError):
        open_model(path)


def test_every_cut_is_noticed_at_open(tmp_path: Path) -> None:
    """C59: nothing loads with a part missing, wherever the cut is."""
    whole = RawModel().pack()
    path = tmp_path / "m.gguf"
    start = read_header(RawModel().write(path)).data_start
    cuts = [0, 7, 8, 100, start // 2, start - 1, start, len(whole) // 2, len(whole) - 1]
    for size in cuts:
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError) as caught:
            open_model(path)
        assert f"of {size}" in caught.value.message or size == 0
    assert "'output_norm.weight' ends at byte" in caught.value.message
    assert f"the file has {len(whole) - 1} bytes" in caught.value.message

    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError) as caught:
        open_model(path)
    ends = [
        (t.offset + t.nbytes, t.name) for t in read_header(RawModel().write(tmp_path / "w")).tensors
    ]
    first = next(name for end, name in ends if end > len(whole) // 2)
    assert f"tensor {first!r}" in caught.value.message


def test_bytes_after_the_last_tensor_are_allowed(tmp_path: Path) -> None:
    """The documented rule, which is llama.cpp's: what follows the last tensor is nobody's."""
    path = tmp_path / "m.gguf"
    path.write_bytes(RawModel().pack() + bytes(100))
    checkpoint = open_model(path)
    assert torch.equal(
        checkpoint.load_float("model.norm.weight"), model_tensors()["output_norm.weight"]
    )


def _twice(raw: RawModel) -> None:
    raw.rows.append(raw.rows[3])


def _overlap(raw: RawModel) -> None:
    raw.rows[2].offset = 0


def _unknown(raw: RawModel) -> None:
    raw.rows.append(RawTensor("blk.0.extra.weight", 0, (4,), bytes(16)))


def _missing(raw: RawModel) -> None:
    raw.rows = [row for row in raw.rows if row.name != "blk.0.ffn_gate.weight"]


def _no_embedding(raw: RawModel) -> None:
    raw.rows = raw.rows[1:]


def _beyond(raw: RawModel) -> None:
    raw.rows.append(RawTensor("blk.1.attn_norm.weight", 0, (64,), bytes(256)))


def _shape(raw: RawModel) -> None:
    raw.rows[2] = RawTensor("blk.0.attn_q.weight", 0, (32, 64), bytes(32 * 64 * 4))


def _integers(raw: RawModel) -> None:
    raw.rows[1] = RawTensor("blk.0.attn_norm.weight", 26, (64,), bytes(256))


def _leading_zero(raw: RawModel) -> None:
    raw.rows[1].name = "blk.00.attn_norm.weight"


def _many_blocks(raw: RawModel) -> None:
    raw.metadata["llama.block_count"] = 2**31


def _no_heads(raw: RawModel) -> None:
    raw.metadata["llama.attention.head_count"] = 0


def _text(raw: RawModel) -> None:
    raw.metadata["llama.embedding_length"] = "sixty-four"


def _odd_heads(raw: RawModel) -> None:
    raw.metadata["llama.attention.head_count_kv"] = 3


def _per_layer(raw: RawModel) -> None:
    counts = number(9, 4) + number(4, 4) + number(2) + number(4, 4) + number(2, 4)
    raw.metadata["llama.attention.head_count_kv"] = counts


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (_twice, r"'blk\.0\.attn_k\.weight' stands twice"),
        (_overlap, r"'token_embd\.weight' and 'blk\.0\.attn_q\.weight' overlap"),
        (_unknown, r"'blk\.0\.extra\.weight' has no place"),
        (_missing, r"no tensor 'blk\.0\.ffn_gate\.weight'"),
        (_no_embedding, r"token_embd"),
        (_beyond, r"'blk\.1\.attn_norm\.weight'"),
        (_shape, r"'blk\.0\.attn_q\.weight' has shape \[32, 64\].*\[64, 64\]"),
        (_integers, r"'blk\.0\.attn_norm\.weight' has type I32"),
        (_leading_zero, r"'blk\.00\.attn_norm\.weight' has no place"),
        (_many_blocks, "2147483648 blocks"),
        (_no_heads, "head_count 0"),
        (_text, "embedding_length is 'sixty-four'"),
        (_odd_heads, "m.gguf: the metadata: num_attention_heads 4 is not a multiple"),
        (_per_layer, "head_count_kv differs between layers"),
    ],
)
def test_models_that_do_not_add_up(
    spoil: Callable[[RawModel], None], match: str, tmp_path: Path
) -> None:
    raw = RawModel()
    spoil(raw)
    started = time.perf_counter()
    with pytest.raises(ModelError, match=match):
        open_model(raw.write(tmp_path / "m.gguf"))
    assert time.perf_counter() - started < 1.0


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"tokenizer.ggml.token_type": [1]}, "token types"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "'a' has the ids 0 and 1"),
        ({"tokenizer.ggml.tokens": [f"t{i}" for i in range(49)]}, "embedding of 48 rows"),
        ({"tokenizer.ggml.merges": ["x y"]}, "'x y'"),
        ({"tokenizer.ggml.merges": ["xy"]}, "'xy'"),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a"]}, "1 tokens, 0 scores"),
        ({"tokenizer.ggml.add_bos_token": True}, "add_bos_token is set without"),
        ({"tokenizer.ggml.add_bos_token": 1}, "add_bos_token is 1, expected true or false"),
        ({"tokenizer.ggml.pre": 4}, "pre is 4, expected a string"),
    ],
)
def test_tokenizers_that_do_not_add_up(changes: dict[str, Any], match: str, tmp_path: Path) -> None:
    base = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2"}
    metadata = {**MODEL_METADATA, **base, **changes}
    checkpoint = open_model(RawModel(metadata=metadata).write(tmp_path / "m.gguf"))
    with pytest.raises(ModelError, match=match):
        checkpoint.companion_reader()


def test_descriptions_may_be_badly_encoded(tmp_path: Path) -> None:
    name = number(8, 4) + string(b"M\xfcller")
    raw = RawModel(metadata={**MODEL_METADATA, "general.author": name})
    assert open_model(raw.write(tmp_path / "m.gguf")).metadata["general.author"] == "M\ufffdller"


@given(data=st.data())
def test_any_changed_bytes_end_in_a_clear_error_or_a_model(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Bytes of the header are changed at random: never another kind of exception."""
    raw = RawModel()
    raw.metadata |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
    }
    whole = bytearray(raw.pack())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, 1600))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("fuzz") / "m.gguf"
    path.write_bytes(whole)
    with contextlib.suppress(QuantkitError):
        checkpoint = open_model(path)
        checkpoint.companion_reader()
        for name in checkpoint.tensors:
            checkpoint.load(name)


MEASURED = """
import resource, sys
from pathlib import Path
from quantkit.errors import ModelError
from quantkit.formats import open_model
import quantkit.formats.gguf

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sorted(Path(sys.argv[1]).glob("*.gguf")):
    try:
        open_model(path)
    except ModelError:
        continue
    sys.exit(f"{path} was opened")
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
sys.exit(0 if grown < 30_000 else f"{grown} kB more memory")
"""


def test_all_of_them_take_no_memory(tmp_path: Path) -> None:
    """C58: what a process takes for them beyond its libraries, measured from outside Python."""
    for index, (data, _) in enumerate(HOSTILE.values()):
        (tmp_path / f"{index}.gguf").write_bytes(data)
    script = [sys.executable, "-c", MEASURED, str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
