"""convert(): the same model in another container, and whether any number changed on the way.

Tensors pass through one at a time. A quantized tensor keeps its codes and scales when the target
can hold its value grid; otherwise it is decoded to floats, in float32 without any loss. Choosing
new codes is rounding, and that is the work of quantize.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from quantkit import __version__
from quantkit.core.checkpoint import Checkpoint, TensorInfo
from quantkit.core.output import Format, OutputPlan, PlannedTensor
from quantkit.core.progress import Progress, SilentProgress
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.registry import suggest
from quantkit.core.scheme import Scheme
from quantkit.errors import ModelError, UsageError
from quantkit.formats import FORMATS, open_model

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
FLOAT_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

Action = Literal["copy", "cast", "keep", "decode"]


@dataclass(frozen=True)
class _Wish:
    """What was asked for: a type for all floats, all tensors as floats, or a grid to be kept."""

    floats: torch.dtype | None = None
    decode_all: bool = False
    grid: Scheme | None = None


@dataclass(frozen=True)
class _Step:
    """One tensor: what it is, how it will be stored, and why a quantized one is not kept."""

    info: TensorInfo
    planned: PlannedTensor
    action: Action
    reason: str | None = None

    @property
    def may_round(self) -> bool:
        """Whether values that the new type cannot hold would be rounded."""
        old = torch.float32 if self.action == "decode" else self.info.dtype
        return self.action in ("cast", "decode") and not _holds(self.planned.dtype, old)


def convert(
    source: str | Path,
    *,
    output: Path,
    format: str,
    type: str | None = None,
    dtype: str | None = None,
    force: bool = False,
    dry_run: bool = False,
    revision: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write a model into another container.

    Args:
        source: folder, GGUF file or hub id.
        output: folder or file; must not exist unless ``force``.
        format: name of the target container.
        type: GGUF only. F32, F16 or BF16 stores every matrix so; a quantized type demands that the
            linears of the source are on that grid already.
        dtype: float32, float16 or bfloat16 for every float tensor. Without it floats keep their
            type, and decoded tensors become float32.
        force: replace ``output``.
        dry_run: only plan.
        revision: branch, tag or commit of a hub model.
        progress: told after every tensor.

    Returns:
        Plain data: source, output, format, bytes; number of tensors per action (copy, cast, keep,
        decode); ``exact`` (None for a dry run whose casts may round) with ``reasons``; and
        ``plan``, one row per tensor.

    Raises:
        UsageError: a combination that cannot be meant, or an output that exists.
        ModelError: the source is damaged or not supported, or holds nothing for the target.
        ResourceError: the output cannot be written.
    """
    wish = _read_wish(format, type, dtype)
    target = FORMATS.get(format)
    checkpoint = open_model(source, revision=revision)
    _check_places(checkpoint, output)
    steps = [_plan(checkpoint, info, target, wish) for info in checkpoint.tensors.values()]
    _check_steps(checkpoint, steps, target, wish)
    counts = Counter(step.action for step in steps)
    result: dict[str, Any] = {
        "source": str(source),
        "output": str(output),
        "format": format,
        "bytes": sum(target.nbytes(step.planned) for step in steps),
        **{action: counts[action] for action in ("copy", "cast", "keep", "decode")},
    }
    if dry_run:
        rounded = [step for step in steps if step.may_round]
        exact = None if rounded else True
    else:
        rounded = _write(checkpoint, target, output, steps, force, progress or SilentProgress())
        exact = not rounded
    return {
        **result,
        "exact": exact,
        "reasons": _reasons(steps, rounded, sure=not dry_run),
        "plan": [_row(step, target) for step in steps],
    }


def _read_wish(format: str, type: str | None, dtype: str | None) -> _Wish:
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"--dtype {dtype!r} is unknown", hint=suggest(dtype, DTYPES, "type"))
    floats = None if dtype is None else DTYPES[dtype]
    if type is None:
        return _Wish(floats)
    if format != "gguf":
        raise UsageError(f"--type {type} is for GGUF files only", hint="add --format gguf")
    named = FLOAT_TYPES.get(type.upper())
    if named is None:
        return _Wish(floats, grid=Scheme.parse(type))
    if floats not in (None, named):
        raise UsageError(f"--type {type} and --dtype {dtype} differ", hint="give one of them")
    return _Wish(named, decode_all=True)


def _check_places(checkpoint: Checkpoint, output: Path) -> None:
    if output.resolve() == checkpoint.path.resolve():
        raise UsageError(f"{output} is the source", hint="choose another output")


def _plan(checkpoint: Checkpoint, info: TensorInfo, target: Format, wish: _Wish) -> _Step:
    # GGUF stores vectors as F32 whatever the file's type is.
    always = torch.float32 if target.name == "gguf" and len(info.shape) == 1 else None
    if info.scheme is None:
        dtype = always or wish.floats or info.dtype
        action: Action = "copy" if dtype == info.dtype else "cast"
        return _Step(info, PlannedTensor(info.name, info.shape, None, dtype), action)
    reason = _refusal(checkpoint, info, target, wish)
    if reason is None:
        planned = PlannedTensor(info.name, info.shape, info.scheme, info.dtype)
        return _Step(info, planned, "keep")
    dtype = always or wish.floats or torch.float32
    return _Step(info, PlannedTensor(info.name, info.shape, None, dtype), "decode", reason)


def _refusal(checkpoint: Checkpoint, info: TensorInfo, target: Format, wish: _Wish) -> str | None:
    """Why a quantized tensor is decoded, or None when its codes are kept."""
    assert info.scheme is not None
    if wish.decode_all:
        return "floats were asked for"
    if target.name != "gguf" and not checkpoint.require_model().arch.is_linear_weight(info.name):
        return f"{target.name} quantizes the linears of the blocks only"
    reason = target.admits(info.scheme, info.shape)
    if reason is None and target.name == "gguf" and checkpoint.format != "gguf":
        value = checkpoint.load(info.name)
        if isinstance(value, QuantizedTensor) and value.perm is not None:
            return "GGUF cannot hold permuted columns (act-order)"
    return reason


def _check_steps(
    checkpoint: Checkpoint, steps: Sequence[_Step], target: Format, wish: _Wish
) -> None:
    """Refuse what only rounding could do."""
    if target.name not in ("hf", "gguf") and not any(step.action == "keep" for step in steps):
        arch = checkpoint.require_model().arch
        reasons = [s for s in steps if s.reason and arch.is_linear_weight(s.info.name)]
        decoded = reasons[0] if reasons else None
        why = f": {decoded.info.name}: {decoded.reason}" if decoded else ", it is not quantized"
        raise ModelError(
            f"{checkpoint.path} holds no tensor that {target.name} can store{why}",
            hint=f"`quantkit quantize -f {target.name}` chooses new numbers",
        )
    if wish.grid is None:
        return
    arch = checkpoint.require_model().arch
    for step in steps:
        if arch.is_linear_weight(step.info.name) and step.planned.scheme != wish.grid:
            raise UsageError(
                f"{step.info.name} is stored as {step.info.stored}; --type would round it",
                hint="rounding is `quantkit quantize -m rtn`; convert keeps the numbers",
            )


def _write(
    checkpoint: Checkpoint,
    target: Format,
    output: Path,
    steps: Sequence[_Step],
    force: bool,
    progress: Progress,
) -> list[_Step]:
    """Stream every tensor; return the steps in which a value was rounded."""
    plan = OutputPlan(
        config=checkpoint.config,
        model=checkpoint.require_model(),
        tensors=tuple(step.planned for step in steps),
        companions=checkpoint.companion_reader(),
        record={
            "quantkit": __version__,
            "command": "convert",
            "source_format": checkpoint.format,
            "source_quantization": checkpoint.quant_method,
        },
    )
    rounded = []
    with target.writer(output, plan, force=force) as writer:
        progress.start("convert", len(steps), "tensor")
        for step in steps:
            value, was_exact = _carry(checkpoint.load(step.info.name), step)
            writer.put(step.info.name, value)
            if not was_exact:
                rounded.append(step)
            progress.advance()
        progress.done()
        writer.close({"exact": not rounded, "rounded": [step.info.name for step in rounded]})
    return rounded


def _carry(value: Tensor | QuantizedTensor, step: _Step) -> tuple[Tensor | QuantizedTensor, bool]:
    """The value to write, and whether it equals the one read."""
    if step.action in ("copy", "keep"):
        return value, True
    before = value.decode() if isinstance(value, QuantizedTensor) else value
    after = before.to(step.planned.dtype)
    if not step.may_round:
        return after, True
    if after.isinf().any() and (lost := after.isinf() & before.isfinite()).any():
        name = str(step.planned.dtype).removeprefix("torch.")
        raise ModelError(
            f"{step.info.name}: {before[lost][0].item():.6g} is too large for {name}",
            hint="use --dtype bfloat16 or float32",
        )
    return after, torch.equal(after.to(before.dtype), before)


def _holds(new: torch.dtype, old: torch.dtype) -> bool:
    """Whether every value of float type ``old`` is a value of ``new``."""
    small, large = torch.finfo(old), torch.finfo(new)
    return large.max >= small.max and large.eps <= small.eps and large.tiny <= small.tiny


def _reasons(steps: Sequence[_Step], rounded: Sequence[_Step], *, sure: bool) -> list[str]:
    """One line per reason for which codes were given up or values rounded."""
    lines = []
    for reason, count in Counter(step.reason for step in steps if step.reason).items():
        lines.append(f"{_tensors(count)} decoded: {reason}")
    verb = "rounded" if sure else "rounded unless every value fits"
    for dtype, count in Counter(step.planned.dtype for step in rounded).items():
        lines.append(f"{_tensors(count)} {verb}: stored as {str(dtype).removeprefix('torch.')}")
    return lines


def _tensors(count: int) -> str:
    return f"{count} tensor{'' if count == 1 else 's'}"


def _row(step: _Step, target: Format) -> dict[str, Any]:
    planned = step.planned
    kind = planned.scheme if planned.scheme is not None else planned.dtype
    return {
        "tensor": planned.name,
        "shape": list(planned.shape),
        "from": step.info.stored,
        "to": str(kind).removeprefix("torch."),
        "bytes": target.nbytes(planned),
        "action": step.action,
    }
