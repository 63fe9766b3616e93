"""Whether a checkpoint holds every tensor that its config asks for, in the right shape."""

import re

from quantkit.core.arch import Role
from quantkit.core.checkpoint import Checkpoint
from quantkit.core.config import ModelConfig
from quantkit.errors import ModelError

# Rotary tables that older transformers releases saved; they follow from the config.
_IGNORED = re.compile(r"(.*\.)?rotary_emb\.inv_freq")


def check_complete(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Compare a checkpoint of a covered family with what its config asks for.

    Returns:
        Names of tensors that nothing asks for.

    Raises:
        ModelError: a tensor is missing or has another shape, or no data file covers the family.
    """
    model = checkpoint.require_model()
    required = required_tensors(model)
    required |= _biases(checkpoint, model)
    missing = [name for name in required if name not in checkpoint.tensors]
    if missing:
        count = f", and {len(missing) - 1} more are" if len(missing) > 1 else ""
        raise ModelError(
            f"{checkpoint.path}: tensor {missing[0]} is missing{count} (of {len(required)})",
            hint="the model was saved or downloaded incompletely, or its config.json is another's",
        )
    known = dict(required)
    head = f"{model.arch.head}.weight"
    known.setdefault(head, (model.vocab_size, model.hidden_size))
    for name, shape in known.items():
        info = checkpoint.tensors.get(name)
        if info is not None and info.shape != shape:
            raise ModelError(
                f"{checkpoint.path}: tensor {name} has shape {list(info.shape)}, "
                f"but config.json asks for {list(shape)}",
                hint="config.json and weights come from different models",
            )
    return tuple(n for n in checkpoint.tensors if n not in known and not _IGNORED.fullmatch(n))


def required_tensors(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight of a model, biases aside."""
    arch, hidden = model.arch, model.hidden_size
    found: dict[str, tuple[int, ...]] = {f"{arch.embed}.weight": (model.vocab_size, hidden)}
    for layer in range(model.num_layers):
        prefix = arch.block_prefix(layer)
        for norm in (arch.attn_norm, arch.mlp_norm):
            found[f"{prefix}{norm}.weight"] = (hidden,)
        for norm in filter(None, (arch.q_norm, arch.k_norm)):
            found[f"{prefix}{norm}.weight"] = (model.head_dim,)
        for spec in arch.linears:
            found[f"{prefix}{spec.name}.weight"] = linear_shape(model, spec.role)
    found[f"{arch.norm}.weight"] = (hidden,)
    if not model.tie_embeddings:
        found[f"{arch.head}.weight"] = (model.vocab_size, hidden)
    return found


def linear_shape(model: ModelConfig, role: Role) -> tuple[int, int]:
    """[N, K] of a linear by what it computes."""
    hidden, inner = model.hidden_size, model.intermediate_size
    q, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    shapes: dict[Role, tuple[int, int]] = {
        "q": (q, hidden),
        "k": (kv, hidden),
        "v": (kv, hidden),
        "qkv": (q + 2 * kv, hidden),
        "o": (hidden, q),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
    }
    return shapes[role]


def _biases(checkpoint: Checkpoint, model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Biases that must be there: the family's, the config's, and those that any block has."""
    found: dict[str, tuple[int, ...]] = {}
    for spec in model.arch.linears:
        switch = "attention_bias" if spec.group.startswith("attn") else "mlp_bias"
        names = [f"{model.arch.block_prefix(i)}{spec.name}.bias" for i in range(model.num_layers)]
        asked = spec.name in model.arch.biased or checkpoint.config.get(switch) is True
        if asked or any(n in checkpoint.tensors for n in names):
            found |= dict.fromkeys(names, linear_shape(model, spec.role)[:1])
    return found
