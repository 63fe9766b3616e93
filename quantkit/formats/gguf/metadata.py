"""GGUF metadata of a model, from its config.json. The keys: docs/formats/gguf.md."""

from collections import Counter
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from quantkit.core.config import ModelConfig
from quantkit.core.output import OutputPlan
from quantkit.errors import ModelError
from quantkit.formats.gguf.container import storage_bytes
from quantkit.formats.gguf.encode import MetadataBuilder
from quantkit.formats.gguf.tokenizer_read import PHI3_NAMES
from quantkit.formats.gguf.types import FILE_TYPES, GgmlType, type_of

QUANTIZATION_VERSION = 2
"""Version of the block layouts, as llama.cpp counts them."""

# Numbers of config.json that the metadata or the tensors carry.
_CARRIED = {
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_theta",
    "partial_rotary_factor", "vocab_size", "sliding_window", "original_max_position_embeddings",
    "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id",
}  # fmt: skip
# Numbers that change nothing when the model runs.
_HARMLESS = {
    "initializer_range", "attention_dropout", "hidden_dropout", "embd_pdrop", "resid_pdrop",
    "pretraining_tp", "max_window_layers", "num_labels", "chunk_size_feed_forward",
}  # fmt: skip
_ROPE_CARRIED = {
    "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "partial_rotary_factor",
    "original_max_position_embeddings",
}  # fmt: skip
# llama.cpp multiplies frequencies by rope_freqs.weight in these architectures only.
_ROPE_FREQS_ARCHS = ("llama",)


def write_model(
    out: MetadataBuilder, plan: OutputPlan, *, vocab_size: int, phi3_name: bool
) -> list[str]:
    """Add what the model is: everything but the tokenizer.

    Args:
        out: gains the entries.
        plan: the model.
        vocab_size: rows of the embedding.
        phi3_name: name the model so that llama.cpp strips white space after special tokens.

    Returns:
        Warnings: what the metadata does not carry, one line each.

    Raises:
        ModelError: the config asks for something that the container cannot say.
    """
    model, config = plan.model, plan.config
    arch = model.arch.gguf_arch
    out.text("general.architecture", arch)
    out.text("general.type", "model")
    out.text("general.name", _name(plan, phi3_name=phi3_name))
    out.integer("general.file_type", FILE_TYPES[_main_type(plan)])
    out.integer("general.quantization_version", QUANTIZATION_VERSION)
    out.integer(f"{arch}.vocab_size", vocab_size)
    out.integer(f"{arch}.context_length", model.max_positions)
    out.integer(f"{arch}.embedding_length", model.hidden_size)
    out.integer(f"{arch}.block_count", model.num_layers)
    out.integer(f"{arch}.feed_forward_length", model.intermediate_size)
    out.integer(f"{arch}.attention.head_count", model.num_heads)
    out.integer(f"{arch}.attention.head_count_kv", model.num_kv_heads)
    out.integer(f"{arch}.attention.key_length", model.head_dim)
    out.integer(f"{arch}.attention.value_length", model.head_dim)
    out.real(f"{arch}.attention.layer_norm_rms_epsilon", model.norm_eps)
    _write_rope(out, arch, model, config)
    warnings = _write_windows(out, arch, model)
    if config.get("vocab_size", vocab_size) != vocab_size:
        warnings.append(
            f"config.json says vocab_size {config['vocab_size']}, "
            f"the embedding has {vocab_size} rows; the rows count"
        )
    return warnings + _not_carried(config)


def _write_rope(
    out: MetadataBuilder, arch: str, model: ModelConfig, config: Mapping[str, Any]
) -> None:
    rope = model.rope
    if arch == "llama" and rope.dim != model.head_dim:
        raise ModelError(
            f"config.json: {rope.dim} of {model.head_dim} channels of a head are rotated, "
            "which GGUF's llama architecture cannot say"
        )
    out.integer(f"{arch}.rope.dimension_count", rope.dim)
    out.real(f"{arch}.rope.freq_base", rope.theta)
    original = None
    if rope.kind == "linear":
        out.text(f"{arch}.rope.scaling.type", "linear")
        out.real(f"{arch}.rope.scaling.factor", rope.factor)
    elif rope.kind == "llama3":
        if arch not in _ROPE_FREQS_ARCHS:
            raise ModelError(
                f"config.json: rope type 'llama3' cannot be stored in GGUF for {arch!r}",
                hint="llama.cpp knows it for the llama architecture only",
            )
        original = rope.original_positions
    elif arch == "phi3":
        original = int(config.get("original_max_position_embeddings") or model.max_positions)
    if original is not None:
        out.integer(f"{arch}.rope.scaling.original_context_length", original)


def _write_windows(out: MetadataBuilder, arch: str, model: ModelConfig) -> list[str]:
    key = f"{arch}.attention.sliding_window"
    windows = set(model.windows)
    if windows <= {None}:
        if arch == "phi3":
            out.integer(key, 0)  # llama.cpp takes a missing key for a damaged file
        return []
    if len(windows) == 1:
        out.integer(key, next(window for window in windows if window is not None))
        kept = "the file names it, but llama.cpp does not apply it"
    else:
        kept = "GGUF cannot say which layers have it, so all attend to everything"
    shown = min(window for window in windows if window is not None)
    return [f"sliding window of {shown} tokens: {kept}; longer texts get other results there"]


def _not_carried(config: Mapping[str, Any]) -> list[str]:
    """Warnings for numbers of the config that nothing here understands."""
    left = [
        f"{key} = {value}"
        for key, value in config.items()
        if _is_number(value) and key not in _CARRIED | _HARMLESS
    ]
    for block in ("rope_parameters", "rope_scaling"):
        for key, value in (config.get(block) or {}).items():
            if _is_number(value) and key not in _ROPE_CARRIED:
                left.append(f"{block}.{key} = {value}")
    return [f"config.json: {entry} is not carried over to GGUF" for entry in left]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _main_type(plan: OutputPlan) -> GgmlType:
    """The type that most bytes of the linears have."""
    sizes: Counter[GgmlType] = Counter()
    for tensor in plan.tensors:
        if plan.model.arch.is_linear_weight(tensor.name):
            kind = type_of(tensor)
            sizes[kind] += storage_bytes(kind, tensor.shape)
    return sizes.most_common(1)[0][0] if sizes else GgmlType.F32


def _name(plan: OutputPlan, *, phi3_name: bool) -> str:
    """Name of the model. llama.cpp changes how it tokenizes for some names, see PHI3_NAMES."""
    given = plan.config.get("_name_or_path")
    name = PurePath(given).name if isinstance(given, str) else ""
    name = name or plan.model.arch.name
    if phi3_name:
        return name if any(part in name.lower() for part in PHI3_NAMES) else f"phi-3 {name}"
    for part in PHI3_NAMES:
        while (at := name.lower().find(part)) >= 0:
            name = f"{name[:at]}phi 3{name[at + len(part) :]}"
    return name
