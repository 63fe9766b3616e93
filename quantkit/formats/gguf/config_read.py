"""config.json of a Hugging Face model, rebuilt from GGUF metadata."""

from collections.abc import Collection
from typing import Any

import torch

from quantkit.archs import ARCHS, find_gguf_arch
from quantkit.core.arch import Arch
from quantkit.errors import ModelError
from quantkit.formats.gguf.fields import Fields
from quantkit.formats.gguf.rope import Factors, fit_llama3

_DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


def find_arch(fields: Fields) -> Arch:
    """The family of a file.

    GGUF has one name for llama and mistral; a sliding window tells them apart where it matters.

    Raises:
        ModelError: no data file covers the family.
    """
    name = fields.text("general.architecture")
    wanted = "MistralForCausalLM" if f"{name}.attention.sliding_window" in fields else None
    arch = find_gguf_arch(name, hf_class=wanted)
    if arch is None:
        known = sorted({ARCHS.get(key).gguf_arch for key in ARCHS})
        raise ModelError(
            f"{fields.path}: architecture {name!r} is not supported",
            hint=f"supported in GGUF: {', '.join(known)}",
        )
    return arch


def read_config(
    fields: Fields,
    arch: Arch,
    names: Collection[str],
    *,
    vocab_size: int,
    dtype: torch.dtype,
    rope_factors: Factors | None,
) -> dict[str, Any]:
    """A config.json that transformers accepts.

    Args:
        fields: the metadata, with the architecture as its prefix.
        arch: the family.
        names: Hugging Face names of the tensors in the file.
        vocab_size: rows of the embedding.
        dtype: float type that the weights are kept in.
        rope_factors: the tensor ``rope_freqs.weight``, when there is one.

    Raises:
        ModelError: a value is missing, of the wrong kind, or asks for something not supported.
    """
    hidden = fields.integer("{a}.embedding_length")
    heads = fields.integer("{a}.attention.head_count")
    if hidden <= 0 or heads <= 0:
        raise ModelError(f"{fields.path}: embedding_length {hidden}, head_count {heads}")
    head_dim = fields.integer("{a}.attention.key_length", hidden // heads)
    if fields.integer("{a}.attention.value_length", head_dim) != head_dim:
        raise ModelError(f"{fields.path}: keys and values of different length are not supported")
    dtype_name = _DTYPES.get(dtype, "float32")
    config: dict[str, Any] = {
        "architectures": [arch.hf_class],
        "model_type": arch.model_types[0],
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": fields.integer("{a}.feed_forward_length"),
        "num_hidden_layers": fields.integer("{a}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer("{a}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": fields.integer("{a}.context_length"),
        "rms_norm_eps": fields.real("{a}.attention.layer_norm_rms_epsilon"),
        **_rope(fields, head_dim, rope_factors),
        "vocab_size": vocab_size,
        "tie_word_embeddings": f"{arch.head}.weight" not in names,
        **_family(fields, arch, names),
    }
    for key, ours in (("bos", "bos"), ("eos", "eos"), ("padding", "pad")):
        config[f"{ours}_token_id"] = token_id(fields, key, vocab_size)
    return {**config, "dtype": dtype_name, "torch_dtype": dtype_name}


def token_id(fields: Fields, kind: str, vocab_size: int) -> int | None:
    """Id of a special token, or None where the file names none (or one outside the vocabulary)."""
    key = f"tokenizer.ggml.{kind}_token_id"
    if key not in fields:
        return None
    found = fields.integer(key)
    return found if 0 <= found < vocab_size else None


def _rope(fields: Fields, head_dim: int, factors: Factors | None) -> dict[str, Any]:
    """Both spellings of the rotary settings: transformers 5 and before."""
    theta = fields.real("{a}.rope.freq_base", 10000.0)
    scaling: dict[str, Any] = {}
    kind = fields.text("{a}.rope.scaling.type", "none")
    if kind != "none" and fields.real("{a}.rope.scaling.factor", 1.0) != 1.0:
        scaling = {"rope_type": kind, "factor": fields.real("{a}.rope.scaling.factor")}
    if factors is not None and (factors != 1.0).any():
        original = fields.integer("{a}.rope.scaling.original_context_length", 0) or None
        fitted = fit_llama3(factors, theta, original)
        if fitted is None or scaling:
            raise ModelError(
                f"{fields.path}: tensor 'rope_freqs.weight' follows no known rescaling of "
                "rotary frequencies",
                hint="only Llama 3's rescaling is supported",
            )
        scaling = {"rope_type": "llama3", **fitted}
    found: dict[str, Any] = {"rope_theta": theta}
    if scaling:
        found["rope_scaling"] = scaling
    parameters = {"rope_theta": theta, **(scaling or {"rope_type": "default"})}
    dim = fields.integer("{a}.rope.dimension_count", head_dim)
    if dim != head_dim:
        found["partial_rotary_factor"] = parameters["partial_rotary_factor"] = dim / head_dim
    return {**found, "rope_parameters": parameters}


def _family(fields: Fields, arch: Arch, names: Collection[str]) -> dict[str, Any]:
    """What only some families have: biases and sliding windows."""
    window = fields.integer("{a}.attention.sliding_window", 0) or None
    first = arch.block_prefix(0)
    biased = {spec.role for spec in arch.linears if f"{first}{spec.name}.bias" in names}
    attention, mlp = biased & {"q", "k", "v", "o"}, biased & {"gate", "up", "down"}
    match arch.name:
        case "llama":
            _all_or_none(fields, attention, 4, "attention")
            _all_or_none(fields, mlp, 3, "feed-forward")
            return {"attention_bias": bool(attention), "mlp_bias": bool(mlp)}
        case "qwen2":
            return {"use_sliding_window": window is not None, "sliding_window": window} | (
                {} if window is None else {"max_window_layers": 0}
            )
        case "qwen3":
            _all_or_none(fields, attention, 4, "attention")
            return {
                "attention_bias": bool(attention),
                "use_sliding_window": window is not None,
                "sliding_window": window,
            } | ({} if window is None else {"max_window_layers": 0})
        case "phi3":
            original = fields.integer(
                "{a}.rope.scaling.original_context_length", fields.integer("{a}.context_length")
            )
            return {"sliding_window": window, "original_max_position_embeddings": original}
    return {"sliding_window": window}


def _all_or_none(fields: Fields, biased: Collection[str], every: int, part: str) -> None:
    if biased and len(biased) != every:
        raise ModelError(
            f"{fields.path}: the {part} linears {sorted(biased)} have biases and the others not, "
            "which is not supported"
        )
