"""Tensor names and row orders of GGUF against those of Hugging Face."""

import torch
from torch import Tensor

from quantkit.core.arch import Arch, Role
from quantkit.core.qtensor import QuantizedTensor

_SUFFIXES = (".weight", ".bias")
_PERMUTED: tuple[Role, ...] = ("q", "k")
ROPE_FREQS = "rope_freqs.weight"
"""Divisors of the rotary frequencies, F32 [D/2]: how GGUF writes Llama 3's rope scaling."""


def to_gguf(arch: Arch, name: str) -> str | None:
    """GGUF name of a Hugging Face tensor, or None when the family has no place for it."""
    path, suffix = _split(name)
    if path in arch.gguf_globals:
        return arch.gguf_globals[path] + suffix
    if not path.startswith(arch.blocks + "."):
        return None
    layer, _, below = path[len(arch.blocks) + 1 :].partition(".")
    if not layer.isdecimal() or below not in arch.gguf_names:
        return None
    return f"blk.{int(layer)}.{arch.gguf_names[below]}{suffix}"


def to_hf(arch: Arch, name: str) -> str | None:
    """Hugging Face name of a GGUF tensor, or None when the family has no place for it."""
    path, suffix = _split(name)
    for ours, theirs in arch.gguf_globals.items():
        if path == theirs:
            return ours + suffix
    head, _, rest = path.partition(".")
    layer, _, below = rest.partition(".")
    if head != "blk" or not layer.isdecimal() or str(int(layer)) != layer:
        return None
    for ours, theirs in arch.gguf_names.items():
        if below == theirs:
            return f"{arch.block_prefix(int(layer))}{ours}{suffix}"
    return None


def is_derived(name: str) -> bool:
    """Whether a Hugging Face tensor only repeats what the config says; GGUF leaves it out."""
    return name.endswith(".rotary_emb.inv_freq")


def permuted_role(arch: Arch, name: str) -> Role | None:
    """``q`` or ``k`` for a weight or bias whose rows GGUF stores in another order, else None."""
    if not arch.gguf_permute:
        return None
    path, _ = _split(name)
    for role in _PERMUTED:
        spec = arch.linear(role)
        if spec is not None and path.startswith(arch.blocks) and path.endswith("." + spec.name):
            return role
    return None


def row_order(rows: int, heads: int) -> Tensor:
    """For each row in GGUF's order, the Hugging Face row that stands there: int64 [N].

    GGUF rotates neighboring channels of a head, Hugging Face rotates channel i with i + D/2.
    """
    return torch.arange(rows).view(heads, 2, rows // heads // 2).transpose(1, 2).reshape(-1)


def take_rows(value: Tensor | QuantizedTensor, order: Tensor) -> Tensor | QuantizedTensor:
    """Rows of a weight, a bias or a quantized weight in another order."""
    if isinstance(value, Tensor):
        return value[order]
    return QuantizedTensor(
        value.scheme,
        value.codes[order],
        tuple(scale[order] for scale in value.scales),
        zeros=None if value.zeros is None else value.zeros[order],
        minimums=tuple(minimum[order] for minimum in value.minimums),
        perm=value.perm,
    )


def _split(name: str) -> tuple[str, str]:
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix), suffix
    return name, ""
