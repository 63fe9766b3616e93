"""convert(): every number accounted for, and nothing rounded in silence."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from quantkit.convert import convert
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.recipe import resolve_recipe
from quantkit.errors import ModelError, UsageError
from quantkit.formats import open_model
from quantkit.pipeline import quantize
from tests.helpers.tiny import tiny_model

LINEAR = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model("llama", tmp_path_factory.mktemp("convert") / "source")


def round_to(source: Path, output: Path, **flags: Any) -> Path:
    """Quantize by plain rounding."""
    flags = {"methods": ["rtn"], **flags}
    recipe = resolve_recipe(str(source), overrides=flags, settings=["scale_search=none"])
    quantize(recipe, output=output)
    return output


@pytest.fixture(scope="module")
def q4_0(source: Path) -> Path:
    return round_to(source, source.with_name("q4.gguf"), format="gguf", type="Q4_0")


@pytest.fixture(scope="module")
def q4_1(source: Path) -> Path:
    return round_to(source, source.with_name("q41.gguf"), format="gguf", type="Q4_1")


@pytest.fixture(scope="module")
def gptq(source: Path) -> Path:
    return round_to(source, source.with_name("gptq"), format="gptq", group_size=32)


def floats(path: Path) -> dict[str, torch.Tensor]:
    checkpoint = open_model(path)
    return {name: checkpoint.load_float(name, torch.float32) for name in checkpoint.tensors}


def assert_same(one: Path, other: Path) -> None:
    before, after = floats(one), floats(other)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def ids(path: Path) -> list[int]:
    from quantkit.core.tokenizer import Tokenizer

    return Tokenizer.from_checkpoint(open_model(path)).encode("Hello 42 wörld\n")


def test_folder_to_gguf_and_back(source: Path, tmp_path: Path) -> None:
    there = convert(source, output=tmp_path / "m.gguf", format="gguf")
    assert there["exact"] is True
    assert there["copy"] == len(there["plan"])
    assert there["bytes"] == sum(row["bytes"] for row in there["plan"])
    back = convert(tmp_path / "m.gguf", output=tmp_path / "back", format="hf")
    assert back["exact"] is True
    assert_same(source, tmp_path / "back")
    assert ids(source) == ids(tmp_path / "back")


def test_gguf_codes_become_a_float_folder(q4_1: Path, tmp_path: Path) -> None:
    result = convert(q4_1, output=tmp_path / "hf", format="hf")
    assert result["exact"] is True
    assert result["decode"] > 0
    assert any("float tensors only" in reason for reason in result["reasons"])
    assert_same(q4_1, tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text(encoding="utf-8"))
    assert config["dtype"] == "float32"
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


def test_codes_move_between_containers(q4_0: Path, tmp_path: Path) -> None:
    result = convert(q4_0, output=tmp_path / "gptq", format="gptq")
    assert result["exact"] is True
    assert result["keep"] == 14
    before, after = open_model(q4_0).load(LINEAR), open_model(tmp_path / "gptq").load(LINEAR)
    assert isinstance(before, QuantizedTensor)
    assert isinstance(after, QuantizedTensor)
    assert before.equal(after)
    assert_same(q4_0, tmp_path / "gptq")


def test_gptq_becomes_gguf(gptq: Path, tmp_path: Path) -> None:
    result = convert(gptq, output=tmp_path / "m.gguf", format="gguf", type="Q4_0")
    assert result["exact"] is True
    assert result["keep"] == 14
    assert_same(gptq, tmp_path / "m.gguf")


def test_grid_that_the_target_lacks(q4_1: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no tensor that gptq can store") as caught:
        convert(q4_1, output=tmp_path / "gptq", format="gptq")
    assert "quantkit quantize -f gptq" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


def test_narrower_floats_are_called_not_exact(source: Path, tmp_path: Path) -> None:
    result = convert(source, output=tmp_path / "half", format="hf", dtype="float16")
    assert result["exact"] is False
    assert result["reasons"] == ["21 tensors rounded: stored as float16"]
    wide = convert(tmp_path / "half", output=tmp_path / "wide", format="hf", dtype="float32")
    assert wide["exact"] is True
    assert wide["cast"] == 21
    assert_same(tmp_path / "half", tmp_path / "wide")


def test_values_that_fit_are_exact_in_a_narrower_type(source: Path, tmp_path: Path) -> None:
    convert(source, output=tmp_path / "half", format="hf", dtype="bfloat16")
    convert(tmp_path / "half", output=tmp_path / "wide", format="hf", dtype="float32")
    assert convert(tmp_path / "wide", output=tmp_path / "b", format="hf", dtype="bfloat16")["exact"]


def test_too_large_for_the_type(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(source / "model.safetensors")
    weights[LINEAR][0, 0] = 1e6
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=f"{LINEAR}: 1e\\+06 is too large for float16"):
        convert(folder, output=tmp_path / "half", format="hf", dtype="float16")
    assert [path.name for path in tmp_path.iterdir()] == ["large"]


def test_vectors_of_a_gguf_file_stay_float32(source: Path, tmp_path: Path) -> None:
    convert(source, output=tmp_path / "m.gguf", format="gguf", type="F16")
    tensors = open_model(tmp_path / "m.gguf").tensors
    assert tensors[LINEAR].dtype == torch.float16
    assert tensors["model.norm.weight"].dtype == torch.float32


def test_dry_run(source: Path, tmp_path: Path) -> None:
    result = convert(source, output=tmp_path / "x", format="hf", dtype="float16", dry_run=True)
    assert result["exact"] is None
    assert "unless every value fits" in result["reasons"][0]
    assert convert(source, output=tmp_path / "x", format="hf", dry_run=True)["exact"] is True
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"format": "hf", "dtype": "float23"}, "--dtype 'float23' is unknown"),
        ({"format": "hf", "type": "F16"}, "for GGUF files only"),
        ({"format": "gguf", "type": "F16", "dtype": "float32"}, "differ"),
        ({"format": "gguf", "type": "Q9"}, "Q9"),
        ({"format": "gguf", "type": "Q8_0"}, "--type would round it"),
        ({"format": "gguv"}, "unknown format 'gguv'"),
    ],
)
def test_what_cannot_be_meant(
    source: Path, tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        convert(source, output=tmp_path / "x", **settings)
    assert list(tmp_path.iterdir()) == []


def test_output_exists(source: Path, tmp_path: Path) -> None:
    convert(source, output=tmp_path / "x", format="hf")
    with pytest.raises(UsageError, match="exists"):
        convert(source, output=tmp_path / "x", format="hf")
    convert(source, output=tmp_path / "x", format="hf", dtype="bfloat16", force=True)
    assert open_model(tmp_path / "x").tensors[LINEAR].dtype == torch.bfloat16


def test_source_is_no_output(source: Path) -> None:
    with pytest.raises(UsageError, match="is the source"):
        convert(source, output=source, format="hf", force=True)
