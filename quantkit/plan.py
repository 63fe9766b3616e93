"""The plan of a quantization: what every tensor becomes, decided before anything is calibrated."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quantkit.core.arch import LinearSpec
from quantkit.core.checkpoint import Checkpoint
from quantkit.core.output import Format, PlannedTensor
from quantkit.core.recipe import KEEP, Recipe
from quantkit.core.registry import suggest
from quantkit.core.scheme import Scheme, has_group
from quantkit.errors import ModelError, UsageError
from quantkit.formats import FORMATS
from quantkit.formats.complete import check_complete
from quantkit.formats.gguf.types import side_schemes

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_DEFAULT_GROUPS = (128, 64, 32)
_BASE_BYTES = 500_000_000  # interpreter and libraries
_FLOAT = 4


@dataclass(frozen=True)
class Decision:
    """What one tensor becomes, and why.

    Attributes:
        tensor: as it will be written.
        source: how it is stored in the source.
        reason: rule, default or container rule that decided.
        layer: number of its block, None outside the blocks.
        linear: which linear of the block it is the weight of, if any.
    """

    tensor: PlannedTensor
    source: str
    reason: str
    layer: int | None
    linear: LinearSpec | None


@dataclass(frozen=True)
class QuantizePlan:
    """Everything that is decided before the first token is read.

    Attributes:
        format: container.
        scheme: value grid of the linears that no rule names.
        decisions: one per tensor of the output, in the order of writing.
        output: folder or file that will be written.
    """

    checkpoint: Checkpoint
    format: Format
    scheme: Scheme
    decisions: tuple[Decision, ...]
    output: Path

    @property
    def num_bytes(self) -> int:
        """Exact bytes of all tensors in the output."""
        return sum(self.format.nbytes(d.tensor) for d in self.decisions)

    def bits_per_weight(self, *, body: bool = False) -> float:
        """Bits per weight of the file, or of the linears of the blocks alone."""
        chosen = [d for d in self.decisions if not body or d.linear is not None]
        bits = 8 * sum(self.format.nbytes(d.tensor) for d in chosen)
        return bits / max(1, sum(_count(d.tensor.shape) for d in chosen))

    @property
    def peak_bytes(self) -> int:
        """Estimate of the memory that the run needs beyond mapped files and hidden states."""
        blocks: dict[int, int] = defaultdict(int)
        widest = 0
        for d in self.decisions:
            if d.layer is not None:
                blocks[d.layer] += _count(d.tensor.shape) * _FLOAT
            if d.linear is not None and d.tensor.scheme is not None:
                widest = max(widest, d.tensor.shape[-1])
        largest = max(
            (_count(d.tensor.shape) * 2 for d in self.decisions if d.layer is None), default=0
        )
        # One block with its codes; the Gram matrix and two float64 copies while it is factored.
        return _BASE_BYTES + 2 * max(blocks.values(), default=0) + 5 * widest**2 * _FLOAT + largest

    def quantized(self) -> list[Decision]:
        """Decisions that change numbers to codes."""
        return [d for d in self.decisions if d.tensor.scheme is not None]

    def rows(self) -> list[dict[str, Any]]:
        """One row per tensor, for tables and JSON."""
        return [
            {
                "tensor": d.tensor.name,
                "shape": list(d.tensor.shape),
                "from": d.source,
                "to": str(d.tensor.scheme or d.tensor.dtype).removeprefix("torch."),
                "bytes": self.format.nbytes(d.tensor),
                "why": d.reason,
            }
            for d in self.decisions
        ]


def make_plan(checkpoint: Checkpoint, recipe: Recipe, output: Path | None) -> QuantizePlan:
    """Decide what every tensor becomes.

    Raises:
        ModelError: the source is already quantized, incomplete or not supported.
        UsageError: the recipe asks for what the container or the shapes cannot give.
    """
    if checkpoint.quant_method is not None:
        raise ModelError(
            f"{checkpoint.path} is already quantized ({checkpoint.quant_method})",
            hint="give the original model, or decode it first: quantkit convert MODEL -f hf -o OUT",
        )
    check_complete(checkpoint)
    name = _format_name(recipe, output)
    format = FORMATS.get(name)
    parts = _parts(checkpoint, recipe, name)
    keep = _keep_dtype(checkpoint, recipe)
    rules = [
        (re.compile(rule.pattern), rule.scheme, f"{rule.pattern}={rule.scheme}")
        for rule in recipe.rules
    ]
    used: set[str] = set()
    decisions = []
    head = f"{checkpoint.require_model().arch.head}.weight"
    for info_name, info in checkpoint.tensors.items():
        if info_name == head and checkpoint.is_tied:
            continue  # a second name of the embedding
        layer, linear = _locate(checkpoint, info_name)
        scheme, reason = _default(checkpoint, info_name, linear, parts)
        dtype = keep or info.dtype
        for pattern, text, shown in rules:
            if pattern.search(info_name) and len(info.shape) >= 2:
                used.add(shown)
                scheme = None if text == KEEP else _grouped(text, checkpoint, [info.shape])
                reason = f"rule {shown}"
                break
        if scheme is None and name == "gguf" and len(info.shape) == 1:
            dtype = torch.float32
        planned = PlannedTensor(info_name, info.shape, scheme, dtype)
        decisions.append(Decision(planned, info.stored, reason, layer, linear))
    _check_rules([shown for _, _, shown in rules], used, checkpoint)
    _check_shapes(format, decisions)
    linear_scheme = parts["linear"]
    assert isinstance(linear_scheme, Scheme)
    if not any(d.tensor.scheme for d in decisions):
        raise UsageError("the rules keep every tensor, so nothing would be quantized")
    place = output or _default_output(checkpoint, recipe, linear_scheme, name)
    if place.resolve() == checkpoint.path.resolve():
        raise UsageError(f"{place} is the source itself", hint="choose another output")
    return QuantizePlan(checkpoint, format, linear_scheme, tuple(decisions), place)


def _format_name(recipe: Recipe, output: Path | None) -> str:
    """Container: as asked, or as type and output name imply, else gptq."""
    named, kind = recipe.output.format, recipe.output.type
    if kind is not None and named not in (None, "gguf"):
        raise UsageError(
            f"--type {kind} is for GGUF files, not --format {named}", hint="drop one of them"
        )
    if named is not None:
        if named == "hf":
            raise UsageError(
                "--format hf holds floats only", hint="choose gptq or gguf, or `quantkit convert`"
            )
        return named
    return "gguf" if kind is not None or (output and output.suffix == ".gguf") else "gptq"


def _parts(checkpoint: Checkpoint, recipe: Recipe, format: str) -> dict[str, Scheme | torch.dtype]:
    """Defaults for ``linear``, ``embed`` and ``head``; a missing one is kept."""
    shapes = [
        i.shape for n, i in checkpoint.tensors.items() if _locate(checkpoint, n)[1] is not None
    ]
    if format != "gguf":
        return {"linear": _grouped(recipe.scheme, checkpoint, shapes)}
    kind = recipe.output.type
    if kind is None:
        scheme = Scheme.parse(recipe.scheme, default_group=32)
        return {**side_schemes("Q8_0", tied=checkpoint.is_tied), "linear": scheme}
    parts = side_schemes(kind, tied=checkpoint.is_tied)
    if not isinstance(parts["linear"], Scheme):
        raise UsageError(
            f"--type {kind} holds floats, so there is nothing to quantize",
            hint=f"quantkit convert MODEL -f gguf -t {kind} -o OUT.gguf",
        )
    return parts


def _grouped(text: str, checkpoint: Checkpoint, shapes: Sequence[tuple[int, ...]]) -> Scheme:
    """Scheme of a text; a group size that it leaves out is the largest usual one that divides."""
    scheme = Scheme.parse(text)
    if has_group(text):
        return scheme
    widths = {shape[-1] for shape in shapes}
    group = next((g for g in _DEFAULT_GROUPS if all(w % g == 0 for w in widths)), None)
    if group is None:
        raise UsageError(
            f"none of the group sizes {_DEFAULT_GROUPS} divides all input widths {sorted(widths)}",
            hint="give --group-size, or --group-size -1 for one scale per row",
        )
    return scheme.with_group(group)


def _default(
    checkpoint: Checkpoint,
    name: str,
    linear: LinearSpec | None,
    parts: Mapping[str, Scheme | torch.dtype],
) -> tuple[Scheme | None, str]:
    arch = checkpoint.require_model().arch
    if linear is not None:
        part, reason = parts.get("linear"), "linear of a block"
    elif name == f"{arch.embed}.weight":
        tied = checkpoint.is_tied
        part, reason = parts.get("embed"), "tied embedding" if tied else "embedding"
    elif name == f"{arch.head}.weight":
        part, reason = parts.get("head"), "output head"
    else:
        return None, "not a matrix product"
    return (part, reason) if isinstance(part, Scheme) else (None, f"{reason}, kept")


def _locate(checkpoint: Checkpoint, name: str) -> tuple[int | None, LinearSpec | None]:
    """Block number of a tensor, and the linear whose weight it is."""
    arch = checkpoint.require_model().arch
    if not name.startswith(arch.blocks + "."):
        return None, None
    number, _, path = name[len(arch.blocks) + 1 :].partition(".")
    if not number.isdigit():
        return None, None
    return int(number), next((s for s in arch.linears if path == f"{s.name}.weight"), None)


def _keep_dtype(checkpoint: Checkpoint, recipe: Recipe) -> torch.dtype | None:
    """Type of kept tensors: as asked; bfloat16 for a float32 source; None: the source's own."""
    asked = recipe.output.keep_dtype
    if asked is not None:
        if asked not in DTYPES:
            raise UsageError(
                f"--keep-dtype {asked!r} is unknown", hint=suggest(asked, DTYPES, "type")
            )
        return DTYPES[asked]
    arch = checkpoint.require_model().arch
    main = checkpoint.tensors[f"{arch.embed}.weight"].dtype
    return torch.bfloat16 if main == torch.float32 else None


def _check_rules(all_rules: Sequence[str], used: set[str], checkpoint: Checkpoint) -> None:
    for shown in all_rules:
        if shown not in used:
            arch = checkpoint.require_model().arch
            names = [s.name for s in arch.linears] + [arch.head, arch.embed]
            pattern = shown.rpartition("=")[0]
            shorter = [n.rpartition(".")[2] for n in names]
            raise UsageError(
                f"rule {shown!r} matches no tensor",
                hint=suggest(pattern, [*names, *shorter], "tensor"),
            )


def _check_shapes(format: Format, decisions: Sequence[Decision]) -> None:
    """Refuse what the container cannot hold, naming the tensors and remedies."""
    refused = []
    for d in decisions:
        if d.tensor.scheme is None:
            continue
        why = format.admits(d.tensor.scheme, d.tensor.shape)
        if why is None and format.name != "gguf" and d.linear is None:
            why = f"{format.name} files hold embeddings and the output head as floats only"
        if why is not None:
            refused.append((d.linear.name if d.linear else d.tensor.name, d.tensor.shape[-1], why))
    if not refused:
        return
    kinds = sorted({(name, width) for name, width, _ in refused})
    listed = ", ".join(f"{name} ({width} inputs)" for name, width in kinds)
    raise UsageError(
        f"{refused[0][2]}; refused in all: {len(refused)} tensors, {listed}",
        hint=f"use another --group-size or scheme, or keep them: --rule '{kinds[0][0]}=keep'",
    )


def _default_output(checkpoint: Checkpoint, recipe: Recipe, scheme: Scheme, format: str) -> Path:
    methods = "-".join(entry.name for entry in recipe.methods)
    kind = recipe.output.type.lower() if recipe.output.type else str(scheme)
    suffix = ".gguf" if format == "gguf" else ""
    return Path(f"{checkpoint.path.resolve().name.removesuffix('.gguf')}-{methods}-{kind}{suffix}")


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
