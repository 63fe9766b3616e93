"""GGUF files of small models, written by the writer under test or by gguf-py."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from torch import Tensor

from quantkit.core.checkpoint import Checkpoint
from quantkit.core.output import OutputPlan, PlannedTensor
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.scheme import Scheme
from quantkit.formats import FORMATS
from quantkit.formats.gguf import side_schemes
from quantkit.formats.gguf.blocks import decode_blocks

GGUF = FORMATS.get("gguf")


def round_to(weight: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Plain rounding of a weight by gguf-py, on the grid of a block type."""
    names = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
    kind = next(GGMLQuantizationType[n] for n in names if Scheme.parse(n) == scheme)
    data = quantize(weight.float().contiguous().numpy(), kind)
    return decode_blocks(np.ascontiguousarray(data).reshape(-1), kind, tuple(weight.shape))


def stored_as(source: Checkpoint, kind: str) -> dict[str, Tensor | QuantizedTensor]:
    """Every tensor of a float model as a GGUF file of a type stores it."""
    parts = side_schemes(kind, tied=source.is_tied)
    arch = source.require_model().arch
    found: dict[str, Tensor | QuantizedTensor] = {}
    for name in source.tensors:
        value = source.load_float(name, torch.float32)
        part = {f"{arch.embed}.weight": "embed", f"{arch.head}.weight": "head"}.get(name)
        if part is None and arch.is_linear_weight(name):
            part = "linear"
        wanted = torch.float32 if part is None else parts[part]
        found[name] = (
            value.to(wanted) if isinstance(wanted, torch.dtype) else round_to(value, wanted)
        )
    return found


def plan_of(
    source: Checkpoint, values: dict[str, Tensor | QuantizedTensor], **changes: Any
) -> OutputPlan:
    """The plan that writes these values with the config and companions of a model."""
    planned = tuple(
        PlannedTensor(
            name,
            tuple(value.shape),
            value.scheme if isinstance(value, QuantizedTensor) else None,
            torch.float32 if isinstance(value, QuantizedTensor) else value.dtype,
        )
        for name, value in values.items()
    )
    parts: dict[str, Any] = {
        "config": source.config,
        "model": source.require_model(),
        "tensors": planned,
        "companions": source.companion_reader(),
        "record": {"recipe": "test"},
    }
    return OutputPlan(**(parts | changes))


def write_gguf(
    plan: OutputPlan,
    values: dict[str, Tensor | QuantizedTensor],
    path: Path,
    *,
    force: bool = False,
) -> tuple[str, ...]:
    """Write a file and return the writer's warnings."""
    with GGUF.writer(path, plan, force=force) as writer:
        for name, value in values.items():
            writer.put(name, value)
        writer.close({"note": "written by a test"})
    warnings: tuple[str, ...] = writer.warnings
    return warnings


def convert_to(source: Checkpoint, path: Path, kind: str) -> dict[str, Tensor | QuantizedTensor]:
    """Write a float model as a GGUF file of a type and return what went in."""
    values = stored_as(source, kind)
    write_gguf(plan_of(source, values), values, path)
    return values
