"""config.json: both spellings, strict types, and clear words for what is missing."""

import pytest

from quantkit.archs import ARCHS, find_arch, model_config
from quantkit.core.config import Rope
from quantkit.errors import ModelError

BASE = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def read(**changes):
    return model_config({**BASE, **changes})


def test_both_spellings_of_rope() -> None:
    assert read(rope_theta=5e5).rope == Rope(5e5, 16)
    assert read(rope_parameters={"rope_theta": 5e5, "rope_type": "default"}).rope == Rope(5e5, 16)
    old = read(rope_theta=1e4, rope_scaling={"type": "linear", "factor": 2})
    new = read(rope_parameters={"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0})
    assert old.rope == new.rope == Rope(1e4, 16, "linear", 2.0)
    old = read(rope_theta=1e4, rope_scaling={"rope_type": "llama3", **LLAMA3})
    new = read(rope_parameters={"rope_theta": 1e4, "rope_type": "llama3", **LLAMA3})
    assert old.rope == new.rope
    assert old.rope.original_positions == 64


def test_derived_numbers_are_read_where_given() -> None:
    assert read().head_dim == 16
    assert read(head_dim=32).head_dim == 32
    assert read(head_dim=32).attention_scale == pytest.approx(32**-0.5)
    assert read(num_key_value_heads=None).num_kv_heads == 4
    assert read(partial_rotary_factor=0.5).rope.dim == 8
    assert read(eos_token_id=[3, 4]).eos_ids == (3, 4)
    assert read(eos_token_id=3).eos_ids == (3,)


def test_windows() -> None:
    assert read(sliding_window=None).windows == (None, None)
    assert read(model_type="mistral", sliding_window=16).windows == (16, 16)
    assert read(model_type="qwen2", sliding_window=16, use_sliding_window=False).windows == (
        None,
        None,
    )
    upper = read(
        model_type="qwen2", sliding_window=16, use_sliding_window=True, max_window_layers=1
    )
    assert upper.windows == (None, 16)
    kinds = ["sliding_attention", "full_attention"]
    assert read(sliding_window=8, layer_types=kinds).windows == (8, None)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"hidden_act": "relu"}, "relu"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "yarn"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"sliding_window": 8, "layer_types": ["full_attention"]}, "layer_types"),
        ({"partial_rotary_factor": 0.01}, "rotary"),
    ],
)
def test_what_cannot_be_read_is_named(changes, word) -> None:
    with pytest.raises(ModelError, match=word):
        read(**changes)


def test_families() -> None:
    assert find_arch({"model_type": "bloom"}) is None
    assert model_config({"model_type": "bloom"}) is None
    for name in ARCHS:
        arch = ARCHS.get(name)
        names = [spec.name for spec in arch.linears]
        assert len(set(names)) == len(names)
        assert set(names) <= set(arch.gguf_names)
        assert len(set(arch.gguf_names.values())) == len(arch.gguf_names)
        known = {*names, arch.attn_norm, arch.mlp_norm}
        for pair in arch.smooth:
            assert {pair.before, *pair.after} <= known
        assert arch.is_linear_weight(f"model.layers.11.{names[0]}.weight")
        assert not arch.is_linear_weight("model.layers.0.input_layernorm.weight")
        assert not arch.is_linear_weight("lm_head.weight")
    with pytest.raises(ModelError, match="lama"):
        ARCHS.get("lama")
