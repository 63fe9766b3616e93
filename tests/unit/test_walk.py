"""Calibration statistics against hooks on transformers, with padding and documents."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from quantkit.archs import model_config
from quantkit.calibration import walk as walk_module
from quantkit.calibration.stats import Stats
from quantkit.calibration.walk import start_walk
from quantkit.calibration.windows import Windows
from quantkit.errors import ModelError
from tests.helpers.tiny import tiny_model

CPU = torch.device("cpu")
GROUPS = {
    "attn_in": "self_attn.q_proj",
    "attn_out": "self_attn.o_proj",
    "mlp_in": "mlp.up_proj",
    "mlp_mid": "mlp.down_proj",
}


def windows(ids, docs=None):
    docs = torch.zeros_like(ids) if docs is None else docs
    return Windows(ids, docs, (), len(ids), ids.numel())


def open_tiny(arch, tmp_path, **changes):
    folder = tiny_model(arch, tmp_path / "m", **changes)
    config = model_config(json.loads((folder / "config.json").read_text()))
    return folder, config, load_file(folder / "model.safetensors")


def block_weights(config, tensors, layer):
    prefix = config.arch.block_prefix(layer)
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}


def walk_over(config, tensors, given):
    table = tensors["model.embed_tokens.weight"]
    return start_walk(config, given, lambda ids: table[ids], device=CPU)


def collect_all(config, tensors, given):
    walk = walk_over(config, tensors, given)
    found = {}
    with torch.inference_mode():
        for layer in range(config.num_layers):
            own = block_weights(config, tensors, layer)
            for group in GROUPS:
                found[layer, group] = walk.collect(own, layer, group, with_gram=True)
            walk.advance(own, layer)
    return found, walk


@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen3"])
def test_statistics_equal_hooks(arch, tmp_path) -> None:
    folder, config, tensors = open_tiny(arch, tmp_path)
    ids = torch.randint(0, 512, (3, 40), generator=torch.Generator().manual_seed(0))
    found, walk = collect_all(config, tensors, windows(ids))
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    ).eval()
    seen: dict = {}

    def remember(key):
        return lambda module, args: seen.__setitem__(key, args[0].reshape(-1, args[0].shape[-1]))

    for layer in range(config.num_layers):
        for group, name in GROUPS.items():
            module = model.get_submodule(f"model.layers.{layer}.{name}")
            module.register_forward_pre_hook(remember((layer, group)))
    with torch.inference_mode():
        model(ids)
    for key, stats in found.items():
        x = seen[key]
        gram = x.T @ x
        assert stats.num_tokens == 120
        assert (stats.gram.double() - gram).abs().max() <= 1e-4 * gram.abs().max()
        assert torch.allclose(stats.absmax.double(), x.abs().amax(0), rtol=1e-4)
        assert torch.allclose(stats.square, x.square().sum(0), rtol=1e-4)
        assert torch.allclose(stats.importance.double(), x.square().mean(0), rtol=1e-4)
        assert torch.allclose(stats.abssum, x.abs().sum(0), rtol=1e-4)
    assert torch.isfinite(walk.hidden).all()


def test_padding_and_neighbors_change_nothing(tmp_path, monkeypatch) -> None:
    _, config, tensors = open_tiny("llama", tmp_path)
    generator = torch.Generator().manual_seed(0)
    lengths = [3, 40, 17, 40, 9, 25]
    ids = torch.randint(0, 512, (6, 40), generator=generator)
    docs = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        docs[row, length:] = -1
    together, _ = collect_all(config, tensors, windows(ids, docs))
    monkeypatch.setattr(walk_module, "_BATCH_TOKENS", 40)
    alone, _ = collect_all(config, tensors, windows(ids, docs))
    cut = [
        collect_all(config, tensors, windows(ids[row : row + 1, :length]))[0]
        for row, length in enumerate(lengths)
    ]
    for key, stats in together.items():
        merged = Stats.empty(stats.square.shape[0], with_gram=True)
        for part in cut:
            merged.merge(part[key])
        for other in (alone[key], merged):
            assert stats.num_tokens == other.num_tokens == sum(lengths)
            assert torch.allclose(stats.absmax, other.absmax, rtol=1e-5)
            scale = other.gram.abs().max()
            assert (stats.gram - other.gram).abs().max() <= 1e-4 * scale


def test_packed_documents_equal_separate_ones(tmp_path) -> None:
    _, config, tensors = open_tiny("llama", tmp_path)
    ids = torch.randint(0, 512, (1, 30), generator=torch.Generator().manual_seed(0))
    docs = torch.tensor([[0] * 11 + [1] * 19])
    packed, _ = collect_all(config, tensors, windows(ids, docs))
    for key, stats in packed.items():
        merged = Stats.empty(stats.square.shape[0], with_gram=True)
        for part in (ids[:, :11], ids[:, 11:]):
            merged.merge(collect_all(config, tensors, windows(part))[0][key])
        assert (stats.gram - merged.gram).abs().max() <= 1e-4 * merged.gram.abs().max()


def test_large_hidden_states_live_in_a_file(tmp_path, monkeypatch) -> None:
    _, config, tensors = open_tiny("llama", tmp_path)
    ids = torch.randint(0, 512, (2, 20), generator=torch.Generator().manual_seed(0))
    want, before = collect_all(config, tensors, windows(ids))
    monkeypatch.setattr(walk_module, "_IN_MEMORY_BYTES", 0)
    got, after = collect_all(config, tensors, windows(ids))
    assert torch.equal(before.hidden, after.hidden)
    assert all(torch.equal(want[key].gram, got[key].gram) for key in want)


def test_infinite_outputs_and_foreign_tokens_are_named(tmp_path) -> None:
    _, config, tensors = open_tiny("llama", tmp_path)
    walk = walk_over(config, tensors, windows(torch.zeros(1, 8, dtype=torch.long)))
    broken = block_weights(config, tensors, 0)
    broken["mlp.down_proj.weight"] = torch.full_like(broken["mlp.down_proj.weight"], float("inf"))
    with pytest.raises(ModelError, match="block 0"):
        walk.advance(broken, 0)
    with pytest.raises(ModelError, match="token id 600"):
        walk_over(config, tensors, windows(torch.full((1, 8), 600)))
