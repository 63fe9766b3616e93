"""Arch: everything code needs to know about a model family, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["q", "k", "v", "qkv", "o", "gate", "up", "gate_up", "down"]
InputGroup = Literal["attn_in", "attn_out", "mlp_in", "mlp_mid"]


@dataclass(frozen=True)
class LinearSpec:
    """One linear of a block.

    Attributes:
        name: path below the block, without ``.weight``: ``self_attn.q_proj``.
        role: what it computes; fused projections have a role of their own.
        group: input group; linears that read the same tensor share one, and so one statistic.
    """

    name: str
    role: Role
    group: InputGroup


@dataclass(frozen=True)
class SmoothPair:
    """A scale that can move between neighbors without changing the function.

    Attributes:
        before: norm or linear whose output channels are divided by the scale.
        after: linears that read them, whose input columns are multiplied by it.
    """

    before: str
    after: tuple[str, ...]


@dataclass(frozen=True)
class Arch:
    """A model family. Names are Hugging Face module paths.

    Attributes:
        name: short name, also of its data file.
        model_types: values of ``model_type`` in config.json that it covers.
        hf_class: class name for ``architectures`` in config.json.
        linears: the linears of one block, in the order of computation.
        smooth: pairs of a block between which scales may move.
        gguf_arch: value of ``general.architecture``.
        gguf_names: block tensor path (without .weight/.bias) -> GGUF path below ``blk.N``.
        gguf_permute: q and k rows are stored in GGUF's rotary order.
        q_norm, k_norm: per-head norms of queries and keys, or None.
        biased: linears that always have a bias; others may have one.
    """

    name: str
    model_types: tuple[str, ...]
    hf_class: str
    linears: tuple[LinearSpec, ...]
    gguf_arch: str
    gguf_names: Mapping[str, str]
    smooth: tuple[SmoothPair, ...] = ()
    gguf_permute: bool = False
    embed: str = "model.embed_tokens"
    blocks: str = "model.layers"
    norm: str = "model.norm"
    head: str = "lm_head"
    attn_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    q_norm: str | None = None
    k_norm: str | None = None
    biased: tuple[str, ...] = ()
    gguf_globals: Mapping[str, str] = field(
        default_factory=lambda: {
            "model.embed_tokens": "token_embd",
            "model.norm": "output_norm",
            "lm_head": "output",
        }
    )

    def block_prefix(self, layer: int) -> str:
        """Prefix of every tensor of block ``layer``: ``model.layers.3.``."""
        return f"{self.blocks}.{layer}."

    def linear(self, role: Role) -> LinearSpec | None:
        """The linear of that role, or None where it is fused or absent."""
        return next((spec for spec in self.linears if spec.role == role), None)

    def linears_of(self, group: InputGroup) -> tuple[LinearSpec, ...]:
        """The linears that read one input group."""
        return tuple(spec for spec in self.linears if spec.group == group)

    def is_linear_weight(self, name: str) -> bool:
        """Whether a full tensor name is the weight of a block linear."""
        if not (name.startswith(self.blocks + ".") and name.endswith(".weight")):
            return False
        path = name[len(self.blocks) + 1 : -len(".weight")].partition(".")[2]
        return any(spec.name == path for spec in self.linears)
