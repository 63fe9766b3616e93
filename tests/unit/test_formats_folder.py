"""Writing folders: files and their neighbors, sharding, any order, views and aliases."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from quantkit.core.scheme import Scheme
from quantkit.formats import FORMATS, open_model
from tests.helpers.folders import (
    COMPANIONS,
    CONFIG,
    assert_holds,
    float_tensors,
    plan_for,
    put_all,
    quantize_linears,
    snapshot,
    write_folder,
    write_model,
)

HF = FORMATS.get("hf")


def test_one_file_and_its_neighbors(tmp_path: Path) -> None:
    values = float_tensors()
    config = {**CONFIG, "auto_map": {"AutoModel": "code.Model"}, "torch_dtype": "float16"}
    folder = write_model(tmp_path / "out", values, config=config)
    assert_holds(folder, values)
    names = {path.name for path in folder.iterdir()}
    assert names == {"model.safetensors", "config.json", "quantkit.json", *COMPANIONS}
    written = json.loads((folder / "config.json").read_text())
    assert "auto_map" not in written
    assert written["torch_dtype"] == "float32"
    assert {k: v for k, v in written.items() if k in CONFIG and k != "dtype"} == {
        k: v for k, v in CONFIG.items() if k != "dtype"
    }
    assert json.loads((folder / "quantkit.json").read_text()) == {"recipe": "test", "result": 1.5}
    assert {n: (folder / n).read_bytes() for n in COMPANIONS} == COMPANIONS
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_modes_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        folder = write_model(tmp_path / "out", float_tensors())
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o640}


@pytest.mark.parametrize("shard_bytes", [1, 20_000, 60_000, 150_000])
def test_sharding(shard_bytes: int, tmp_path: Path) -> None:
    values = quantize_linears(float_tensors(), {"up_proj": Scheme.parse("w4a16-g32")})
    folder = write_model(tmp_path / "out", values, shard_bytes=shard_bytes)
    assert_holds(folder, values)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    count = len(files)
    assert count > 1
    assert files == [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    assert sorted(set(index["weight_map"].values())) == files
    tensors = [tensor for file in files for tensor in load_file(folder / file).values()]
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors)
    sizes = [sum(t.nbytes for t in load_file(folder / file).values()) for file in files]
    largest = max(tensor.nbytes for tensor in values.values() if isinstance(tensor, Tensor))
    assert all(size <= max(shard_bytes, largest) for size in sizes)


def test_puts_in_any_order(tmp_path: Path) -> None:
    values = float_tensors()
    backwards = dict(reversed(values.items()))
    with HF.writer(tmp_path / "out", plan_for(values, shard_bytes=60_000)) as writer:
        put_all(writer, backwards)
        writer.close({})
    assert_holds(tmp_path / "out", values)


def test_views_and_aliases(tmp_path: Path) -> None:
    """C65: slices of one buffer, a transposed matrix and two names for one tensor."""
    values = float_tensors()
    prefix = "model.layers.0.self_attn."
    buffer = torch.randn(64 + 32 + 32, 64)
    parts = buffer.split([64, 32, 32])
    for part, name in zip(parts, "qkv", strict=True):
        values[f"{prefix}{name}_proj.weight"] = part
    values["model.layers.0.mlp.down_proj.weight"] = torch.randn(192, 64).T
    values["lm_head.weight"] = values["model.embed_tokens.weight"]
    values["model.norm.weight"] = torch.randn(64).requires_grad_()
    folder = write_model(tmp_path / "out", values)
    assert_holds(folder, values)
    size = (folder / "model.safetensors").stat().st_size
    assert size <= 1.01 * sum(t.numel() * t.element_size() for t in values.values()) + 4096


def test_round_trip_of_a_folder_of_others(tmp_path: Path) -> None:
    """A folder that the safetensors library wrote, through a checkpoint and a writer."""
    tensors = float_tensors()
    source = write_folder(tmp_path / "in", tensors, shards=3)
    before = snapshot(source)
    opened = open_model(source)
    assert list(opened.tensors) == [n for i in range(3) for n in shard_order(source, i)]
    assert opened.model is not None
    assert opened.model.hidden_size == 64
    values = {name: opened.load_float(name) for name in opened.tensors}
    plan = plan_for(values, config=opened.config, companions=opened.companion_reader())
    with HF.writer(tmp_path / "out", plan) as writer:
        put_all(writer, values)
        writer.close({})
    assert_holds(tmp_path / "out", tensors)
    assert snapshot(source) == before


def shard_order(folder: Path, i: int) -> list[str]:
    """Names of one shard in the order of their data."""
    with safe_open(folder / f"model-{i + 1:05d}-of-00003.safetensors", framework="pt") as file:
        return list(file.offset_keys())
