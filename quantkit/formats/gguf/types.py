"""Storage types of GGUF, and the schemes and float types that they stand for."""

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType
from gguf.quants import dequantize

from quantkit.core.output import PlannedTensor
from quantkit.core.scheme import Scheme
from quantkit.errors import UsageError

GgmlType = GGMLQuantizationType

FLOATS: dict[GgmlType, torch.dtype] = {
    GgmlType.F32: torch.float32,
    GgmlType.F16: torch.float16,
    GgmlType.BF16: torch.bfloat16,
    GgmlType.F64: torch.float64,
}
"""Types that are read as they stand."""

BLOCKS: dict[GgmlType, Scheme] = {
    kind: Scheme.parse(kind.name)
    for kind in (GgmlType.Q4_0, GgmlType.Q4_1, GgmlType.Q5_0, GgmlType.Q5_1, GgmlType.Q8_0)
}
"""Types that are exactly a one-level scheme of groups of 32, read and written as codes."""

FILE_TYPES: dict[GgmlType, LlamaFileType] = {
    GgmlType.F32: LlamaFileType.ALL_F32,
    GgmlType.F16: LlamaFileType.MOSTLY_F16,
    GgmlType.BF16: LlamaFileType.MOSTLY_BF16,
    GgmlType.Q4_0: LlamaFileType.MOSTLY_Q4_0,
    GgmlType.Q4_1: LlamaFileType.MOSTLY_Q4_1,
    GgmlType.Q5_0: LlamaFileType.MOSTLY_Q5_0,
    GgmlType.Q5_1: LlamaFileType.MOSTLY_Q5_1,
    GgmlType.Q8_0: LlamaFileType.MOSTLY_Q8_0,
}
"""Types that are written, and what ``general.file_type`` calls a file made mostly of them."""

_BY_SCHEME = {scheme: kind for kind, scheme in BLOCKS.items()}
_BY_DTYPE = {dtype: kind for kind, dtype in FLOATS.items() if kind in FILE_TYPES}


def can_decode(kind: GgmlType) -> bool:
    """Whether tensors of a type can be read as floats."""
    if kind in FLOATS:
        return True
    block = np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8)
    try:
        dequantize(block, kind)
    except NotImplementedError:
        return False
    return True


def refusal(scheme: Scheme, shape: tuple[int, ...]) -> str | None:
    """Why no block type holds a tensor of that scheme and shape, or None when one does."""
    kind = _BY_SCHEME.get(scheme)
    if kind is None:
        names = ", ".join(f"{scheme} ({kind.name})" for kind, scheme in BLOCKS.items())
        return f"GGUF has no type for scheme {scheme}; it holds {names}"
    block = GGML_QUANT_SIZES[kind][0]
    if len(shape) < 2:
        return f"{kind.name} holds matrices only, the tensor has one dimension"
    if shape[-1] % block:
        return f"{kind.name} needs rows of a multiple of {block}, the rows have {shape[-1]} columns"
    return None


def type_of(tensor: PlannedTensor) -> GgmlType:
    """Storage type of a planned tensor. Norms, biases and other vectors are always F32.

    Raises:
        UsageError: no type holds it.
    """
    if len(tensor.shape) == 1:
        return GgmlType.F32
    if tensor.scheme is None:
        if tensor.dtype not in _BY_DTYPE:
            raise UsageError(
                f"tensor {tensor.name}: GGUF output cannot hold {tensor.dtype}",
                hint="keep tensors as float32, float16 or bfloat16",
            )
        return _BY_DTYPE[tensor.dtype]
    reason = refusal(tensor.scheme, tensor.shape)
    if reason is not None:
        raise UsageError(f"tensor {tensor.name}: {reason}", hint="choose another type or keep it")
    return _BY_SCHEME[tensor.scheme]


def parse_type(name: str) -> GgmlType:
    """A type that can be written, by its name in any case.

    Raises:
        UsageError: there is no such type, or it is only read.
    """
    kind = next((kind for kind in FILE_TYPES if kind.name == name.upper()), None)
    if kind is None:
        known = ", ".join(kind.name for kind in FILE_TYPES)
        raise UsageError(f"GGUF type {name!r} cannot be written", hint=f"choose one of {known}")
    return kind


def side_schemes(type_name: str, *, tied: bool) -> dict[str, Scheme | torch.dtype]:
    """What each part of a model is stored as in a GGUF file of a type, after llama.cpp's rule.

    The output matrix of a quantized file is Q8_0, and so is an embedding that serves as the output.

    Args:
        type_name: ``Q4_0``, ``F16`` and so on.
        tied: the output head is the embedding matrix.

    Returns:
        A scheme or float type for ``linear`` (linears of the blocks), ``embed`` and ``head``.

    Raises:
        UsageError: the type cannot be written.
    """
    kind = parse_type(type_name)
    if kind in FLOATS:
        return dict.fromkeys(("linear", "embed", "head"), FLOATS[kind])
    base, output = BLOCKS[kind], BLOCKS[GgmlType.Q8_0]
    return {"linear": base, "embed": output if tied else base, "head": output}
