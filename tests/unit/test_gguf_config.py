"""config.json and metadata: every number of a model survives, or is named in a warning."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quantkit.archs import model_config
from quantkit.core.checkpoint import Checkpoint
from quantkit.core.config import Rope
from quantkit.errors import ModelError
from quantkit.formats import open_model
from quantkit.formats.gguf import check_plan
from quantkit.formats.gguf.rope import fit_llama3, llama3_factors
from tests.helpers.folders import CONFIG, float_tensors, write_folder
from tests.helpers.gguf_files import convert_to, plan_of, stored_as
from tests.helpers.gguf_raw import MODEL_METADATA, RawModel, model_tensors
from tests.helpers.tiny import ARCHS, reference_logits, tiny_model

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def folder(path: Path, **changes: Any) -> Checkpoint:
    """A llama of zeros and ones with other settings; None drops one."""
    config = {k: v for k, v in {**CONFIG, **changes}.items() if v is not None}
    return open_model(write_folder(path, float_tensors(config), config=config))


def round_trip(source: Checkpoint, path: Path) -> Checkpoint:
    values = stored_as(source, "F32")
    plan = plan_of(source, values, companions={})
    from tests.helpers.gguf_files import write_gguf

    write_gguf(plan, values, path)
    return open_model(path)


@pytest.mark.parametrize("arch", ARCHS)
def test_rebuilt_config_makes_the_same_model(arch: str, tmp_path: Path) -> None:
    """transformers builds the model from our config and gives the logits of the original."""
    from transformers import AutoConfig, AutoModelForCausalLM

    source = open_model(tiny_model(arch, tmp_path / "hf"))
    convert_to(source, tmp_path / "m.gguf", "F32")
    again = open_model(tmp_path / "m.gguf")
    assert again.tensors.keys() == source.tensors.keys()
    for name in source.tensors:
        assert torch.equal(again.load_float(name), source.load_float(name)), name
    assert again.model == source.model
    settings = dict(again.config)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    missing, unexpected = model.load_state_dict(
        {name: again.load_float(name) for name in again.tensors}, strict=False
    )
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    ids = torch.arange(40)[None] * 7 % 300
    with torch.inference_mode():
        found = model(ids).logits
    assert torch.equal(found, reference_logits(tmp_path / "hf", ids, torch.float32))


def test_unusual_numbers_are_all_there(tmp_path: Path) -> None:
    source = folder(
        tmp_path / "hf",
        rope_theta=1e6,
        rms_norm_eps=1e-4,
        max_position_embeddings=777,
        head_dim=32,
        intermediate_size=160,
    )
    again = round_trip(source, tmp_path / "m.gguf")
    expected = {
        "general.architecture": "llama",
        "general.type": "model",
        "general.file_type": 0,
        "general.quantization_version": 2,
        "llama.vocab_size": 96,
        "llama.context_length": 777,
        "llama.embedding_length": 64,
        "llama.block_count": 2,
        "llama.feed_forward_length": 160,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.key_length": 32,
        "llama.attention.value_length": 32,
        "llama.rope.dimension_count": 32,
        "llama.rope.freq_base": 1e6,
    }
    assert {key: again.metadata[key] for key in expected} == expected
    eps = again.metadata["llama.attention.layer_norm_rms_epsilon"]
    assert eps == np.float32(1e-4)
    assert again.config["rms_norm_eps"] == 1e-4  # not 9.999999747378752e-05
    assert again.model == source.model


def test_a_number_that_is_not_understood_is_named(tmp_path: Path) -> None:
    source = folder(
        tmp_path / "hf",
        logits_scaling=8.0,
        initializer_range=0.02,
        use_cache=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "beta_fast": 32},
    )
    warnings = check_plan(plan_of(source, stored_as(source, "F32"), companions={}))
    shown = [line for line in warnings if "not carried" in line]
    assert len(shown) == 2
    assert "logits_scaling = 8.0" in shown[0]
    assert "rope_parameters.beta_fast = 32" in shown[1]


@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling"])
def test_llama3_rope_becomes_divisors_and_comes_back(tmp_path: Path, spelling: str) -> None:
    source = folder(tmp_path / "hf", head_dim=128, rope_theta=500000.0, **{spelling: LLAMA3})
    again = round_trip(source, tmp_path / "m.gguf")
    assert again.model == source.model
    assert again.config["rope_parameters"] == LLAMA3
    assert "rope_freqs.weight" not in again.tensors


def test_divisors_equal_those_of_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(hidden_size=128, num_attention_heads=1, rope_parameters=LLAMA3)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / (500000.0 ** (torch.arange(0, 128, 2).double() / 128))
    rope = Rope(500000.0, 128, "llama3", 8.0, 1.0, 4.0, 8192)
    np.testing.assert_allclose(llama3_factors(rope), (plain / scaled).numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("factor", "low", "high", "original"),
    [(8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192), (4.0, 2.0, 8.0, 4096), (8.0, 1.0, 16.0, 8192)],
)
def test_fit_finds_the_parameters(factor: float, low: float, high: float, original: int) -> None:
    rope = Rope(10000.0, 128, "llama3", factor, low, high, original)
    found = fit_llama3(llama3_factors(rope), 10000.0, original)
    assert found == {
        "factor": factor,
        "low_freq_factor": pytest.approx(low, rel=1e-4),
        "high_freq_factor": pytest.approx(high, rel=1e-4),
        "original_max_position_embeddings": original,
    }


def test_fit_refuses_other_divisors() -> None:
    generator = np.random.default_rng(0)
    assert fit_llama3(generator.uniform(1, 8, 64).astype(np.float32), 10000.0) is None
    assert fit_llama3(np.full(64, np.nan, np.float32), 10000.0) is None


def test_unknown_divisors_in_a_file_are_refused(tmp_path: Path) -> None:
    tensors = model_tensors()
    tensors["rope_freqs.weight"] = torch.rand(8) + 1.0
    with pytest.raises(ModelError, match=r"rope_freqs\.weight"):
        open_model(RawModel(tensors=tensors).write(tmp_path / "m.gguf"))
    tensors["rope_freqs.weight"] = torch.ones(8)
    checkpoint = open_model(RawModel(tensors=tensors).write(tmp_path / "m.gguf"))
    assert checkpoint.require_model().rope.kind == "default"


def test_linear_rope_scaling(tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 4.0}
    source = folder(tmp_path / "hf", rope_theta=10000.0, rope_scaling=scaling)
    again = round_trip(source, tmp_path / "m.gguf")
    assert again.metadata["llama.rope.scaling.type"] == "linear"
    assert again.model == source.model


def test_llama3_rope_elsewhere_is_refused(tmp_path: Path) -> None:
    source = folder(tmp_path / "hf", model_type="qwen2", rope_parameters=LLAMA3)
    with pytest.raises(ModelError, match="llama3"):
        check_plan(plan_of(source, stored_as(source, "F32"), companions={}))


def test_unsupported_scaling_in_a_file_is_refused(tmp_path: Path) -> None:
    scaling = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    raw = RawModel(metadata={**MODEL_METADATA, **scaling})
    with pytest.raises(ModelError, match="yarn"):
        open_model(raw.write(tmp_path / "m.gguf"))


def test_sliding_windows(tmp_path: Path) -> None:
    """A uniform window survives (llama with one is mistral); llama.cpp ignores it: a warning."""
    source = folder(tmp_path / "hf", model_type="mistral", sliding_window=16)
    values = stored_as(source, "F32")
    (warning,) = [w for w in check_plan(plan_of(source, values, companions={})) if "window" in w]
    assert "16 tokens" in warning
    again = round_trip(source, tmp_path / "m.gguf")
    assert again.config["architectures"] == ["MistralForCausalLM"]
    assert again.model == source.model

    config = {**source.config, "model_type": "qwen2", "max_window_layers": 1}
    mixed = plan_of(source, values, companions={}, config=config, model=model_config(config))
    assert "cannot say which layers" in check_plan(mixed)[0]


@pytest.mark.parametrize("given", ["microsoft/Phi-3-mini", "my-PHI3-tune", "phi-3phi3"])
def test_a_phi3_name_is_not_passed_on(tmp_path: Path, given: str) -> None:
    """llama.cpp changes its tokenizer for models of that name, or fails to load them."""
    source = folder(tmp_path / "hf", _name_or_path=given)
    again = round_trip(source, tmp_path / "m.gguf")
    name = again.metadata["general.name"].lower()
    assert "phi-3" not in name
    assert "phi3" not in name
    assert "phi 3" in name


def test_untied_and_biased(tmp_path: Path) -> None:
    config = {**CONFIG, "attention_bias": True, "tie_word_embeddings": True}
    tensors = float_tensors(config)
    for layer in range(2):
        for part, rows in (("q", 64), ("k", 32), ("v", 32), ("o", 64)):
            name = f"model.layers.{layer}.self_attn.{part}_proj.bias"
            tensors[name] = torch.arange(rows, dtype=torch.float32)
    source = open_model(write_folder(tmp_path / "hf", tensors, config=config))
    again = round_trip(source, tmp_path / "m.gguf")
    assert again.config["attention_bias"] is True
    assert again.config["mlp_bias"] is False
    assert again.config["tie_word_embeddings"] is True
    for name in source.tensors:
        assert torch.equal(again.load_float(name), source.load_float(name)), name


def test_biases_that_llama_cpp_does_not_read_are_refused(tmp_path: Path) -> None:
    config = {**CONFIG, "model_type": "qwen3", "head_dim": 16, "attention_bias": True}
    tensors = float_tensors(config)
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
    source = open_model(write_folder(tmp_path / "hf", tensors, config=config))
    with pytest.raises(ModelError, match=r"q_proj\.bias has no place"):
        check_plan(plan_of(source, stored_as(source, "F32"), companions={}))


@pytest.mark.parametrize(("kind", "dtype"), [("F16", "float16"), ("BF16", "bfloat16")])
def test_the_number_type_of_a_float_file(tmp_path: Path, kind: str, dtype: str) -> None:
    source = folder(tmp_path / "hf")
    from tests.helpers.gguf_files import write_gguf

    values = stored_as(source, kind)
    write_gguf(plan_of(source, values, companions={}), values, tmp_path / "m.gguf")
    again = open_model(tmp_path / "m.gguf")
    assert again.config["dtype"] == again.config["torch_dtype"] == dtype
    assert again.quant_method is None
    assert again.tensors["model.norm.weight"].dtype == torch.float32


def test_missing_numbers_are_named(tmp_path: Path) -> None:
    for key in ("llama.block_count", "llama.embedding_length", "general.architecture"):
        metadata = {k: v for k, v in MODEL_METADATA.items() if k != key}
        with pytest.raises(ModelError, match=key):
            open_model(RawModel(metadata=metadata).write(tmp_path / "m.gguf"))
    metadata = {**MODEL_METADATA, "general.architecture": "mamba"}
    with pytest.raises(ModelError, match="'mamba' is not supported"):
        open_model(RawModel(metadata=metadata).write(tmp_path / "m.gguf"))
