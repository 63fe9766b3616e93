"""One decoder block of any covered family.

``linear`` and ``attention`` are the seams: calibration captures inputs there, the runtime puts its
kernels and the paged cache there.
"""

from collections.abc import Callable, Mapping

from torch import Tensor
from torch.nn.functional import linear as torch_linear
from torch.nn.functional import silu

from quantkit.core.arch import Role
from quantkit.core.config import ModelConfig
from quantkit.models.norm import rms_norm
from quantkit.models.rope import Rotary, rotate

Linear = Callable[[str, Tensor], Tensor]
"""linear(name, x [T, K]) -> [T, N]; the name is the path below the block."""

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""attention(q [T, H, D], k [T, Hk, D], v [T, Hk, D]) -> [T, H, D]; q and k are rotated."""

Weights = Mapping[str, Tensor]
"""Tensors of one block by their path below it: ``input_layernorm.weight``."""


def block(
    config: ModelConfig,
    weights: Weights,
    x: Tensor,
    rotary: Rotary,
    attention: Attention,
    linear: Linear,
) -> Tensor:
    """Run one block.

    Args:
        config: shapes and constants.
        weights: norm weights of the block (linears are reached through ``linear`` only).
        x: hidden states [T, C].
        rotary: cosines and sines of the T positions.
        attention: see ``Attention``.
        linear: see ``Linear``.

    Returns:
        Hidden states [T, C].
    """
    arch = config.arch
    h = rms_norm(x, weights[f"{arch.attn_norm}.weight"], config.norm_eps)
    q, k, v = _queries_keys_values(config, weights, h, linear)
    mixed = attention(rotate(q, rotary), rotate(k, rotary), v)
    x = x + linear(_name(config, "o"), mixed.flatten(1))
    h = rms_norm(x, weights[f"{arch.mlp_norm}.weight"], config.norm_eps)
    gate, up = _gate_up(config, h, linear)
    return x + linear(_name(config, "down"), silu(gate) * up)


def dense_linear(weights: Weights) -> Linear:
    """The plain seam: float weights and biases of one block."""

    def linear(name: str, x: Tensor) -> Tensor:
        return torch_linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    return linear


def _queries_keys_values(
    config: ModelConfig, weights: Weights, h: Tensor, linear: Linear
) -> tuple[Tensor, Tensor, Tensor]:
    rows = [
        n * config.head_dim for n in (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    ]
    if config.arch.linear("qkv"):
        flat = linear(_name(config, "qkv"), h).split(rows, -1)
    else:
        flat = tuple(linear(_name(config, role), h) for role in ("q", "k", "v"))
    q, k, v = (part.reshape(*part.shape[:-1], -1, config.head_dim) for part in flat)
    if config.arch.q_norm and config.arch.k_norm:
        q = rms_norm(q, weights[f"{config.arch.q_norm}.weight"], config.norm_eps)
        k = rms_norm(k, weights[f"{config.arch.k_norm}.weight"], config.norm_eps)
    return q, k, v


def _gate_up(config: ModelConfig, h: Tensor, linear: Linear) -> tuple[Tensor, Tensor]:
    if config.arch.linear("gate_up"):
        gate, up = linear(_name(config, "gate_up"), h).chunk(2, -1)
        return gate, up
    return linear(_name(config, "gate"), h), linear(_name(config, "up"), h)


def _name(config: ModelConfig, role: Role) -> str:
    spec = config.arch.linear(role)
    assert spec is not None, f"{config.arch.name} has no linear of role {role}"
    return spec.name
