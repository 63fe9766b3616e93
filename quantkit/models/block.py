"""One decoder block of any covered family.

``linear`` and ``attention`` are the seams where the runtime puts its kernels and the paged cache.
Calibration runs the same block in steps and sees the inputs of every group of linears.
"""

from collections.abc import Callable, Generator, Mapping

from torch import Tensor
from torch.nn.functional import linear as torch_linear
from torch.nn.functional import silu

from quantkit.core.arch import InputGroup, Role
from quantkit.core.config import ModelConfig
from quantkit.models.norm import rms_norm
from quantkit.models.rope import Rotary, rotate

Linear = Callable[[str, Tensor], Tensor]
"""linear(name, x [T, K]) -> [T, N]; the name is the path below the block."""

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""attention(q [T, H, D], k [T, Hk, D], v [T, Hk, D]) -> [T, H, D]; q and k are rotated."""

Weights = Mapping[str, Tensor]
"""Tensors of one block by their path below it: ``input_layernorm.weight``."""


Stages = Generator[tuple[InputGroup, Tensor], None, Tensor]
"""Yields (input group, its tensor [T, K]) before the linears that read it; returns the output."""


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
    return finish(stages(config, weights, x, rotary, attention, linear))


def stages(
    config: ModelConfig,
    weights: Weights,
    x: Tensor,
    rotary: Rotary,
    attention: Attention,
    linear: Linear,
) -> Stages:
    """The block in steps, so that a linear may still change after its inputs were seen."""
    arch = config.arch
    h = rms_norm(x, weights[f"{arch.attn_norm}.weight"], config.norm_eps)
    yield "attn_in", h
    q, k, v = _queries_keys_values(config, weights, h, linear)
    mixed = attention(rotate(q, rotary), rotate(k, rotary), v).flatten(1)
    del q, k, v
    yield "attn_out", mixed
    x = x + linear(_name(config, "o"), mixed)
    del mixed
    h = rms_norm(x, weights[f"{arch.mlp_norm}.weight"], config.norm_eps)
    yield "mlp_in", h
    gate, up = _gate_up(config, h, linear)
    h = silu(gate) * up
    del gate, up
    yield "mlp_mid", h
    return x + linear(_name(config, "down"), h)


def finish(steps: Stages) -> Tensor:
    """Run the remaining steps of a block and return its output."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            output: Tensor = end.value
            return output


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
