"""Completeness: every tensor that a config asks for, in the right shape, or a clear refusal."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from quantkit.errors import ModelError
from quantkit.formats import open_model
from quantkit.formats.complete import check_complete, required_tensors
from tests.helpers.folders import CONFIG, float_tensors, write_folder
from tests.helpers.tiny import ARCHS, tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", float_tensors())


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("tied", [False, True])
def test_required_tensors_are_those_of_transformers(arch: str, tied: bool, tmp_path: Path) -> None:
    folder = tiny_model(arch, tmp_path / "m", tie_word_embeddings=tied)
    opened = open_model(folder)
    assert opened.model is not None
    assert check_complete(opened) == ()
    required = required_tensors(opened.model)
    weights = {n: i.shape for n, i in opened.tensors.items() if not n.endswith(".bias")}
    assert required == weights
    biases = [name for name in opened.tensors if name.endswith(".bias")]
    assert len(biases) == (6 if arch == "qwen2" else 0)


def incomplete(folder: Path, tensors: dict[str, torch.Tensor], pattern: str) -> None:
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=pattern) as caught:
        check_complete(open_model(folder))
    assert str(folder) in caught.value.message
    assert "\n" not in caught.value.message


def test_missing_tensors(folder: Path) -> None:
    """C03: nothing is ever filled by chance."""
    tensors = float_tensors()
    for name in tensors:
        rest = {n: t for n, t in tensors.items() if n != name}
        incomplete(folder, rest, rf"tensor {re.escape(name)} is missing \(of 21\)")
    embed = {"model.embed_tokens.weight": tensors["model.embed_tokens.weight"]}
    incomplete(folder, embed, r"input_layernorm\.weight is missing, and 19 more are \(of 21\)")


def test_wrong_shape(folder: Path) -> None:
    tensors = float_tensors()
    tensors["model.layers.1.mlp.down_proj.weight"] = torch.ones(192, 64)
    pattern = r"layers\.1\.mlp\.down_proj\.weight has shape \[192, 64\].*\[64, 192\]"
    incomplete(folder, tensors, pattern)


def test_biases(folder: Path) -> None:
    tensors = float_tensors()
    tensors["model.layers.0.mlp.up_proj.bias"] = torch.ones(192)
    incomplete(folder, tensors, r"layers\.1\.mlp\.up_proj\.bias is missing")
    tensors["model.layers.1.mlp.up_proj.bias"] = torch.ones(191)
    incomplete(folder, tensors, r"layers\.1\.mlp\.up_proj\.bias has shape \[191\]")
    tensors["model.layers.1.mlp.up_proj.bias"] = torch.ones(192)
    save_file(tensors, folder / "model.safetensors")
    assert check_complete(open_model(folder)) == ()
    config = {**CONFIG, "attention_bias": True}
    (folder / "config.json").write_text(json.dumps(config))
    incomplete(folder, tensors, r"q_proj\.bias is missing, and 7 more are")


def test_extra_tensors_are_listed(folder: Path) -> None:
    tensors = float_tensors()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    tensors["model.layers.2.mlp.up_proj.weight"] = torch.ones(192, 64)
    tensors["extra"] = torch.ones(1)
    save_file(tensors, folder / "model.safetensors")
    extra = check_complete(open_model(folder))
    assert sorted(extra) == ["extra", "model.layers.2.mlp.up_proj.weight"]


def test_head_of_a_tied_model(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": True}))
    tensors = float_tensors()
    assert check_complete(open_model(folder)) == ()
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    assert check_complete(open_model(folder)) == ()
    tensors["lm_head.weight"] = torch.ones(95, 64)
    incomplete(folder, tensors, r"lm_head\.weight has shape \[95, 64\]")


def test_a_family_with_biases_must_have_them(tmp_path: Path) -> None:
    folder = tiny_model("qwen2", tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    kept = {name: t for name, t in tensors.items() if not name.endswith("q_proj.bias")}
    save_file(kept, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"q_proj\.bias"):
        check_complete(open_model(folder))
