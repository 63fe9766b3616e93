"""quantize(): the loop over blocks, from a checkpoint to a verified file.

    open the source -> plan -> token windows
    -> for each block: gather statistics, round its linears, write them, run the quantized block
    -> reopen the file and compare

Memory stays at about one block, whatever the size of the model.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quantkit import __version__
from quantkit.calibration.data import load_windows
from quantkit.calibration.method import Choice, Rounded, choose_method
from quantkit.calibration.walk import Walk, start_walk
from quantkit.calibration.windows import Windows
from quantkit.card import model_card
from quantkit.core.arch import InputGroup
from quantkit.core.checkpoint import Checkpoint
from quantkit.core.grids import round_nearest
from quantkit.core.memory import check_memory
from quantkit.core.output import OutputPlan, Writer
from quantkit.core.progress import Progress, SilentProgress
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.recipe import Recipe
from quantkit.core.report import Report, environment
from quantkit.core.scheme import Scheme
from quantkit.core.tokenizer import Tokenizer
from quantkit.errors import ModelError, UsageError
from quantkit.formats import open_model
from quantkit.plan import Decision, QuantizePlan, make_plan
from quantkit.verify import Fingerprints, verify_output

_GROUPS: tuple[InputGroup, ...] = ("attn_in", "attn_out", "mlp_in", "mlp_mid")


def quantize(
    recipe: Recipe,
    *,
    output: Path | None = None,
    dry_run: bool = False,
    force: bool = False,
    device: str = "auto",
    revision: str | None = None,
    progress: Progress | None = None,
    report: Report | None = None,
) -> dict[str, Any]:
    """Quantize a model, write it and verify the file.

    Args:
        recipe: what to do, see ``core.recipe.resolve_recipe``.
        output: folder or file; named after model, method and scheme when not given.
        dry_run: only plan.
        force: replace an existing output, in one step at the end.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; where blocks run.
        revision: branch, tag or commit of a hub model.
        progress: told after every block.
        report: collects warnings.

    Returns:
        Plain data: output, plan (one row per tensor), bytes, bits per weight, and unless
        ``dry_run`` the calibration data, the error of every tensor and what was verified.

    Raises:
        QuantkitError: see errors.py; nothing is left at ``output``.
    """
    progress = progress or SilentProgress()
    report = report or Report("quantize", {})
    choice = choose_method(recipe.methods)
    where = _device(device)
    checkpoint = open_model(recipe.model, revision=revision)
    plan = make_plan(checkpoint, recipe, output)
    result = _describe(plan, recipe)
    if dry_run:
        return result
    check_memory(plan.peak_bytes, f"quantizing {checkpoint.path}")
    companions = checkpoint.companion_reader()
    record = {"quantkit": __version__, "recipe": recipe.model_dump(), "recipe_hash": recipe.hash()}
    record |= {"environment": environment()}
    files = {**companions, "README.md": model_card(plan, recipe).encode()}
    planned = OutputPlan(
        checkpoint.config,
        checkpoint.require_model(),
        tuple(d.tensor for d in plan.decisions),
        files,
        record,
        recipe.output.shard_bytes,
    )
    with plan.format.writer(plan.output, planned, force=force) as writer:
        windows = _windows(checkpoint, recipe, report) if choice.needs else None
        run = _Run(checkpoint, plan, choice, writer, windows, where)
        with torch.inference_mode():
            run.everything(progress)
        outcome = {
            "data": windows.summary() if windows is not None else None,
            "tensors": run.errors,
        }
        writer.close(outcome)
    with torch.inference_mode():
        verified = verify_output(plan.output, run.fingerprints, checkpoint, run.walk)
    return {**result, **outcome, "verified": verified}


@dataclass(eq=False)
class _Run:
    """One pass over the source: every planned tensor is read, decided upon and written once."""

    source: Checkpoint
    plan: QuantizePlan
    choice: Choice
    writer: Writer
    windows: Windows | None
    device: torch.device
    walk: Walk | None = None
    fingerprints: Fingerprints = field(default_factory=Fingerprints)
    errors: list[dict[str, Any]] = field(default_factory=list)

    def everything(self, progress: Progress) -> None:
        """Write all tensors: embeddings first, then the blocks, then the rest."""
        model = self.source.require_model()
        outside = [d for d in self.plan.decisions if d.layer is None]
        for decision in outside:
            value = self._outside(decision)
            if decision.tensor.name == f"{model.arch.embed}.weight" and self.windows is not None:
                rows = _row_reader(value)
                self.walk = start_walk(model, self.windows, rows, device=self.device)
        progress.start("quantize", model.num_layers, "block")
        for layer in range(model.num_layers):
            note = self._block(layer)
            progress.advance(note=note)
        progress.done()

    def _outside(self, decision: Decision) -> Tensor | QuantizedTensor:
        """A tensor outside the blocks: kept, or rounded without statistics."""
        name, scheme = decision.tensor.name, decision.tensor.scheme
        value = self.source.load_float(name)
        dtype = decision.tensor.dtype
        stored = value.to(dtype) if scheme is None else round_nearest(value, scheme)
        self._put(name, stored)
        return stored

    def _block(self, layer: int) -> str:
        """Quantize and write one block; returns a note on its errors."""
        arch = self.source.require_model().arch
        prefix = arch.block_prefix(layer)
        decisions = [d for d in self.plan.decisions if d.layer == layer]
        weights: dict[str, Tensor] = {}
        for d in decisions:
            value = self.source.load_float(d.tensor.name)
            if d.tensor.scheme is None:
                value = value.to(d.tensor.dtype)
                self._put(d.tensor.name, value)
            weights[d.tensor.name[len(prefix) :]] = value.to(self.device, torch.float32)
        worst = 0.0
        for group in _GROUPS:
            members = [
                d for d in decisions if d.tensor.scheme and d.linear and d.linear.group == group
            ]
            if members:
                worst = max(worst, self._input_group(layer, group, members, weights))
        if self.walk is not None:
            self.walk.advance(weights, layer)
        return f"largest relative error {worst:.2e}"

    def _input_group(
        self, layer: int, group: InputGroup, members: list[Decision], weights: dict[str, Tensor]
    ) -> float:
        """Round the linears that read one input, stacked where they share a scheme."""
        stats = None
        if self.walk is not None:
            with_gram = "gram" in self.choice.needs
            stats = self.walk.collect(weights, layer, group, with_gram=with_gram)
            stats.check_finite(f"block {layer}, {group}")
        by_scheme: dict[Scheme, list[Decision]] = {}
        for d in members:
            assert d.tensor.scheme is not None
            by_scheme.setdefault(d.tensor.scheme, []).append(d)
        worst = 0.0
        prefix = self.source.require_model().arch.block_prefix(layer)
        for scheme, alike in by_scheme.items():
            paths = [d.tensor.name[len(prefix) :] for d in alike]
            stacked = torch.cat([weights[path] for path in paths]).cpu()
            rounded = self.choice.round(stacked, stats, scheme)
            _check_scales(rounded, [d.tensor.name for d in alike])
            start = 0
            for d, path in zip(alike, paths, strict=True):
                stop = start + d.tensor.shape[0]
                tensor = rounded.tensor.rows(slice(start, stop))
                start = stop
                self._put(d.tensor.name, tensor)
                weights[path] = tensor.decode().to(self.device)
                row = {"tensor": d.tensor.name, "scheme": str(scheme), "error": rounded.error}
                self.errors.append({**row, **rounded.notes})
            worst = max(worst, rounded.error)
        return worst

    def _put(self, name: str, value: Tensor | QuantizedTensor) -> None:
        self.fingerprints.add(name, value)
        self.writer.put(name, value)


def _describe(plan: QuantizePlan, recipe: Recipe) -> dict[str, Any]:
    return {
        "output": str(plan.output),
        "format": plan.format.name,
        "scheme": str(plan.scheme),
        "recipe": recipe.model_dump(),
        "recipe_hash": recipe.hash(),
        "bytes": plan.num_bytes,
        "bits_per_weight": plan.bits_per_weight(),
        "bits_per_weight_linears": plan.bits_per_weight(body=True),
        "peak_memory_bytes": plan.peak_bytes,
        "plan": plan.rows(),
    }


def _windows(checkpoint: Checkpoint, recipe: Recipe, report: Report) -> Windows:
    wanted = recipe.calibration
    return load_windows(
        Tokenizer.from_checkpoint(checkpoint),
        wanted.datasets,
        wanted.num_samples,
        wanted.seq_len,
        wanted.seed,
        warn=lambda line: report.warn("calibration", line),
    )


def _row_reader(value: Tensor | QuantizedTensor) -> Any:
    """Token ids -> embeddings, without decoding the whole matrix."""
    if isinstance(value, QuantizedTensor):
        return lambda ids: value.rows(ids).decode()
    return lambda ids: value[ids]


def _check_scales(rounded: Rounded, names: list[str]) -> None:
    for scales in (*rounded.tensor.scales, *rounded.tensor.minimums):
        if not bool(torch.isfinite(scales).all()):
            raise ModelError(
                f"{names[0]}: a scale is not finite in {scales.dtype}".replace("torch.", ""),
                hint=f"keep it: --rule '{names[0]}=keep'",
            )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"device {name!r} is unknown", hint="auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("no CUDA device is available", hint="use --device cpu")
    return device
