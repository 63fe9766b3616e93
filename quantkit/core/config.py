"""ModelConfig: the numbers of config.json that the decoder needs, read strictly and typed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from quantkit.core.arch import Arch
from quantkit.errors import ModelError

RopeKind = Literal["default", "linear", "llama3"]
_MISSING = object()
T = TypeVar("T")


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding.

    Attributes:
        theta: base of the frequencies.
        dim: rotated channels of a head (the first ones), even.
        kind: how frequencies are rescaled for longer contexts.
        factor: rescaling factor of ``linear`` and ``llama3``.
        low_freq_factor, high_freq_factor, original_positions: of ``llama3``.
    """

    theta: float
    dim: int
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192


@dataclass(frozen=True)
class ModelConfig:
    """Shapes and constants of one model.

    Attributes:
        windows: per layer, the sliding attention window in tokens, or None for full attention.
        eos_ids: token ids that end a text, as the config names them (may be empty).
    """

    arch: Arch
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float
    activation: str
    tie_embeddings: bool
    max_positions: int
    rope: Rope
    windows: tuple[int | None, ...]
    eos_ids: tuple[int, ...] = ()

    @property
    def attention_scale(self) -> float:
        """Factor on q.k before the softmax."""
        return 1.0 / math.sqrt(self.head_dim)


def read(
    config: Mapping[str, Any], key: str, kind: type[T] | tuple[type, ...], default: Any = _MISSING
) -> T:
    """Typed read of one key; null counts as missing.

    Raises:
        ModelError: the key is missing and has no default, or has another type.
    """
    value = config.get(key)
    if value is None:
        if default is _MISSING:
            raise ModelError(
                f"config.json has no {key!r}", hint="check that the folder is a complete model"
            )
        return default  # type: ignore[no-any-return]
    if kind is float and type(value) is int:
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        want = kind.__name__ if isinstance(kind, type) else "/".join(k.__name__ for k in kind)
        raise ModelError(f"config.json: {key} is {value!r}, expected {want}")
    return value  # type: ignore[return-value]


def read_model_config(arch: Arch, config: Mapping[str, Any]) -> ModelConfig:
    """Read config.json of a family.

    Raises:
        ModelError: a key is missing, has the wrong type, or asks for something not supported.
    """
    hidden = _positive(config, "hidden_size")
    heads = _positive(config, "num_attention_heads")
    kv_heads = _positive(config, "num_key_value_heads", heads)
    head_dim = _positive(config, "head_dim", hidden // heads)
    layers = _positive(config, "num_hidden_layers")
    if heads % kv_heads:
        raise ModelError(
            f"config.json: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    activation = read(config, "hidden_act", str, "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(
            f"config.json: hidden_act {activation!r} is not supported for {arch.name}",
            hint="supported: silu",
        )
    max_positions = _positive(config, "max_position_embeddings", 2048)
    return ModelConfig(
        arch=arch,
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=_positive(config, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=_positive(config, "vocab_size"),
        norm_eps=read(config, "rms_norm_eps", float, 1e-6),
        activation="silu",
        tie_embeddings=read(config, "tie_word_embeddings", bool, False),
        max_positions=max_positions,
        rope=_read_rope(config, head_dim, max_positions),
        windows=_read_windows(arch, config, layers),
        eos_ids=id_list(config.get("eos_token_id")),
    )


def id_list(value: Any) -> tuple[int, ...]:
    """Token ids from an int, a list of ints or null."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)


def _positive(config: Mapping[str, Any], key: str, default: Any = _MISSING) -> int:
    value = read(config, key, int, default)
    if value <= 0:
        raise ModelError(f"config.json: {key} is {value}, expected a positive number")
    return value


def _read_rope(config: Mapping[str, Any], head_dim: int, max_positions: int) -> Rope:
    """Rope from ``rope_parameters`` (transformers 5) or ``rope_theta`` with ``rope_scaling``."""
    params = read(config, "rope_parameters", dict, None) or {}
    scaling = params or read(config, "rope_scaling", dict, None) or {}
    theta = float(params.get("rope_theta") or read(config, "rope_theta", float, 10000.0))
    partial = float(
        params.get("partial_rotary_factor") or read(config, "partial_rotary_factor", float, 1.0)
    )
    dim = int(head_dim * partial)
    if dim <= 0 or dim % 2 or dim > head_dim:
        raise ModelError(f"config.json: rotary dimension {dim} does not fit head size {head_dim}")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return Rope(theta, dim)
    factor = read(scaling, "factor", float)
    if kind == "linear":
        return Rope(theta, dim, "linear", factor)
    if kind == "llama3":
        return Rope(
            theta,
            dim,
            "llama3",
            factor,
            read(scaling, "low_freq_factor", float),
            read(scaling, "high_freq_factor", float),
            read(scaling, "original_max_position_embeddings", int, max_positions),
        )
    raise ModelError(
        f"config.json: rope type {kind!r} is not supported",
        hint="supported: default, linear, llama3",
    )


def _read_windows(arch: Arch, config: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    window = read(config, "sliding_window", int, None)
    if window is None or read(config, "use_sliding_window", bool, True) is False:
        return (None,) * layers
    kinds = config.get("layer_types")
    if kinds is not None:
        if len(kinds) != layers:
            raise ModelError(
                f"config.json: layer_types has {len(kinds)} entries for {layers} layers"
            )
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    # Qwen's older configs: the first max_window_layers layers attend to everything.
    first = read(config, "max_window_layers", int, 0) if arch.name.startswith("qwen") else 0
    return tuple(window if layer >= first else None for layer in range(layers))
