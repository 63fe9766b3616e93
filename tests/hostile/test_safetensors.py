"""Damaged and hostile safetensors files and indexes: refused at once, in one line that says why."""

import builtins
import io
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from quantkit.errors import ModelError
from quantkit.formats import open_model
from quantkit.formats.header import read_header
from tests.helpers.folders import float_tensors, snapshot, write_folder

FIRST, LAST = "first", "last"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", float_tensors())


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", float_tensors(), shards=3)


def refused(folder: Path, *words: str) -> ModelError:
    """Opening fails within a second, in one line with these words, and changes nothing."""
    before = snapshot(folder)
    start = time.perf_counter()
    with pytest.raises(ModelError) as caught:
        open_model(folder)
    assert time.perf_counter() - start < 1.0
    message = caught.value.message
    for word in words:
        assert word in message, message
    assert "\n" not in message
    assert len(message) < 600
    assert caught.value.exit_code == 3
    assert snapshot(folder) == before
    return caught.value


def small_file() -> bytes:
    """A sound file of two tensors whose bytes are easy to cut."""
    header = {
        FIRST: {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        LAST: {"dtype": "F32", "shape": [2, 32], "data_offsets": [16, 272]},
    }
    return raw_file(json.dumps(header), bytes(272))


def raw_file(header: str | bytes, data: bytes = b"") -> bytes:
    text = header.encode() if isinstance(header, str) else header
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_sound_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(small_file())
    assert list(read_header(tmp_path / "x")) == [FIRST, LAST]


@pytest.mark.parametrize("size", [0, 7, 8, 100, -1, "half"])
def test_cuts(folder: Path, size: int | str) -> None:
    """C59: a cut anywhere is seen when the folder is opened."""
    whole = small_file()
    end = len(whole) // 2 if size == "half" else int(size)
    (folder / "model.safetensors").write_bytes(whole[:end])
    error = refused(folder, "model.safetensors")
    assert error.hint


def test_cut_names_the_tensor_and_both_sizes(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(small_file()[:-1])
    refused(folder, "cut off", "'last'", "272", "271")


def test_extended_file(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(small_file() + bytes(100))
    refused(folder, "100 bytes after its last tensor")


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 4976698672\n"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (LFS, ["Git LFS pointer"]),
        (b"<!DOCTYPE html><html><body>404</body></html>", ["HTML"]),
        (b"\x80\x02}q\x00(X\x06\x00\x00\x00weightq\x01", ["pickle"]),
        (b"PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00\x00\x00", ["zip archive"]),
        (b"GGUF\x03\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00", ["GGUF"]),
        (b"", ["empty"]),
        (bytes(8) + b"{}", ["0 bytes"]),
        ((1 << 63).to_bytes(8, "little") + b"{}", [str(1 << 63)]),
        ((50).to_bytes(8, "little") + b"{}", ["50 bytes", "10 bytes"]),
        (raw_file("this is not JSON"), ["not JSON"]),
        (raw_file(b"\xff\xfe\x00"), ["not JSON"]),
        (raw_file("[" * 100_000), ["not JSON"]),
        (raw_file("[]"), ["list"]),
        (raw_file("{}"), ["no tensors"]),
        (raw_file('{"__metadata__": {"format": "pt"}}'), ["no tensors"]),
        (raw_file('{"__metadata__": {"format": 1}}'), ["__metadata__"]),
    ],
)
def test_what_is_no_safetensors_file(folder: Path, data: bytes, words: list[str]) -> None:
    """C61."""
    (folder / "model.safetensors").write_bytes(data)
    refused(folder, "model.safetensors", *words)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"x": []}, ["'x'", "declared"]),
        ({"x": {"dtype": "F32"}}, ["'x'", "declared"]),
        ({"x": entry(dtype="F4")}, ["'x'", "F4"]),
        ({"x": entry(dtype=3)}, ["'x'", "dtype 3"]),
        ({"x": entry(shape=[3])}, ["'x'", "12 bytes", "8"]),
        ({"x": entry(shape=[-2])}, ["'x'", "shape"]),
        ({"x": entry(shape=[True, 2])}, ["'x'", "shape"]),
        ({"x": entry(shape=[2.0])}, ["'x'", "shape"]),
        ({"x": entry(shape=[1] * 9)}, ["'x'", "shape"]),
        ({"x": entry(shape=[1 << 70])}, ["'x'", "shape"]),
        ({"x": entry(shape=[1 << 62, 1 << 62])}, ["'x'", "bytes"]),
        ({"x": entry(shape=list(range(100_000)))}, ["'x'", "shape"]),
        ({"x": entry(offsets=[8, 0])}, ["'x'", "offsets"]),
        ({"x": entry(offsets=[0])}, ["'x'", "offsets"]),
        ({"x": entry(offsets=[-8, 0])}, ["'x'", "offsets"]),
        ({"x": entry(offsets=[0, 8]), "y": entry(offsets=[4, 12])}, ["'y'", "overlaps"]),
        ({"x": entry(offsets=[0, 8]), "y": entry(offsets=[0, 8])}, ["'y'", "overlaps"]),
        ({"x": entry(offsets=[4, 12])}, ["'x'", "gap"]),
        ({"x": entry(), "y": entry(offsets=[8, 16])}, ["'y'", "cut off", "16", "12"]),
        ({"x\n\x1b[31m": entry(shape=[9])}, ["x\\n\\x1b"]),
    ],
)
def test_declarations(folder: Path, header: dict[str, Any], words: list[str]) -> None:
    (folder / "model.safetensors").write_bytes(raw_file(json.dumps(header), bytes(12)))
    refused(folder, *words)


def test_duplicate_names(folder: Path) -> None:
    one = json.dumps(entry())
    header = f'{{"x": {one}, "x": {one}}}'
    (folder / "model.safetensors").write_bytes(raw_file(header, bytes(8)))
    refused(folder, "'x' twice")


def test_no_regular_file(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    start = time.perf_counter()
    with pytest.raises(ModelError, match="not a regular file"):
        open_model(folder)
    assert time.perf_counter() - start < 1.0


def test_absurd_sizes_take_no_memory(folder: Path) -> None:
    """A sparse file of 4 TB whose header, by its own word, fills it."""
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write((4_000_000_000_000 - 8).to_bytes(8, "little"))
        file.truncate(4_000_000_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError, match="more than the"):
        open_model(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("config.json", LFS, ["config.json", "Git LFS pointer"]),
        ("config.json", b"", ["config.json", "not valid JSON"]),
        ("config.json", b"[" * 100_000, ["config.json", "nested too deep"]),
        ("config.json", b"[1]", ["config.json", "list"]),
        ("config.json", b'{"model_type": "llama"}', ["config.json", "vocab_size"]),
        ("config.json", b'{"quantization_config": 4}', ["quantization_config"]),
    ],
)
def test_damaged_config(folder: Path, name: str, data: bytes, words: list[str]) -> None:
    (folder / name).write_bytes(data)
    if "vocab_size" in words:
        words = ["model", "config.json has no"]
    refused(folder, *words)


def test_missing_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    refused(folder, "no config.json")


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    refused(folder, "no weights", "weights.safetensors")


# Shards and their index.


def edit_index(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def test_sound_shards(sharded: Path) -> None:
    opened = open_model(sharded)
    assert set(opened.tensors) == set(float_tensors())
    assert torch.equal(opened.load_float("lm_head.weight"), float_tensors()["lm_head.weight"])


@pytest.mark.parametrize("shard", [1, 2, 3])
def test_missing_shard(sharded: Path, shard: int) -> None:
    """C01."""
    (sharded / f"model-0000{shard}-of-00003.safetensors").unlink()
    refused(sharded, f"model-0000{shard}-of-00003.safetensors", "model.safetensors.index.json")


def test_several_missing_shards(sharded: Path) -> None:
    for shard in (1, 3):
        (sharded / f"model-0000{shard}-of-00003.safetensors").unlink()
    refused(sharded, "model-00001-of-00003.safetensors and 1 more")


def test_missing_index(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    refused(sharded, "no model.safetensors.index.json")


def test_index_lists_what_no_shard_holds(sharded: Path) -> None:
    edit_index(sharded, lambda m: m.update({"ghost": "model-00001-of-00003.safetensors"}))
    refused(sharded, "'ghost'", "does not hold it")


def test_index_points_to_the_wrong_shard(sharded: Path) -> None:
    edit_index(sharded, lambda m: m.update({"lm_head.weight": "model-00001-of-00003.safetensors"}))
    refused(sharded, "'lm_head.weight'", "model-00001-of-00003.safetensors")


def test_shard_holds_what_the_index_lacks(sharded: Path) -> None:
    edit_index(sharded, lambda m: m.pop("lm_head.weight"))
    refused(sharded, "'lm_head.weight'", "does not list")


def test_two_shards_hold_one_tensor(sharded: Path) -> None:
    path = sharded / "model-00001-of-00003.safetensors"
    save_file({**load_file(path), "lm_head.weight": torch.ones(96, 64)}, path)
    refused(sharded, "both hold 'lm_head.weight'")


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "model.safetensors"])
def test_stray_weights(sharded: Path, name: str) -> None:
    save_file({"x": torch.ones(1)}, sharded / name)
    refused(sharded, name, "does not name")


@pytest.mark.parametrize("text", ["{}", '{"weight_map": []}', '{"weight_map": {}}'])
def test_index_without_a_map(sharded: Path, text: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(text)
    refused(sharded, "weight_map")


@pytest.fixture
def opened_paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every path that Python code opens."""
    seen: list[str] = []
    original = io.open

    def watch(file: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(str(file))
        return original(file, *args, **kwargs)

    monkeypatch.setattr(io, "open", watch)
    monkeypatch.setattr(builtins, "open", watch)
    return seen


@pytest.mark.parametrize(
    "target",
    [
        "../secret.safetensors",
        "ABSOLUTE",
        "a/../../secret.safetensors",
        "",
        ".",
        "..",
        "model\x00.safetensors",
        "..\\secret.safetensors",
        "model\n.safetensors",
        "x" * 300,
        7,
        None,
        ["secret.safetensors"],
    ],
)
def test_paths_in_the_index_stay_inside(
    sharded: Path, target: Any, opened_paths: list[str]
) -> None:
    """C60: refused before the file outside is opened."""
    secret = sharded.parent / "secret.safetensors"
    save_file({"lm_head.weight": torch.ones(96, 64)}, secret)
    target = str(secret) if target == "ABSOLUTE" else target
    edit_index(sharded, lambda m: m.update({"lm_head.weight": target}))
    opened_paths.clear()
    with pytest.raises(ModelError, match=r"lm_head\.weight.*not a plain file name") as caught:
        open_model(sharded)
    assert "\n" not in caught.value.message
    assert any(path.endswith("config.json") for path in opened_paths)  # the watch works
    assert not [path for path in opened_paths if path.endswith("safetensors")]


def test_already_quantized_by_others(folder: Path) -> None:
    """C04: what another method quantized is named, with what to do."""
    config = json.loads((folder / "config.json").read_text())
    for block, method in [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"load_in_8bit": True}, "bitsandbytes"),
        ({"bits": 4}, "an unnamed method"),
    ]:
        (folder / "config.json").write_text(json.dumps({**config, "quantization_config": block}))
        error = refused(folder, f"already quantized by {method}")
        assert error.hint is not None
        assert "unquantized" in error.hint
