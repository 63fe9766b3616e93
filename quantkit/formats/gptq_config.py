"""The quantization block of a GPTQ folder: what it says, and how to say it.

Keys: bits, group_size (-1: whole row), sym, desc_act, checkpoint_format (``gptq``: zero points are
stored minus one; ``gptq_v2``: as they are), and ``dynamic``, per-module settings by regular
expression, ``+:`` to override and ``-:`` to leave out.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit import __version__
from quantkit.core.arch import Arch
from quantkit.core.output import OutputPlan
from quantkit.core.scheme import Scheme
from quantkit.errors import ModelError, UsageError

BITS = (2, 3, 4, 8)
_SUFFIX = ".weight"


@dataclass(frozen=True)
class ModuleSettings:
    """Settings of one linear: bits, group size (-1: whole row), symmetric or not."""

    bits: int
    group: int
    sym: bool

    @classmethod
    def of(cls, scheme: Scheme) -> "ModuleSettings":
        return cls(scheme.bits, scheme.group, scheme.offset == "none")

    def as_json(self) -> dict[str, Any]:
        return {"bits": self.bits, "group_size": self.group, "sym": self.sym}


@dataclass(frozen=True)
class GptqSettings:
    """Quantization block of a folder.

    Attributes:
        base: settings where no override matches.
        version: 1 or 2, see ``checkpoint_format``.
        dynamic: (pattern, overrides) in order, the first match counts.
    """

    base: ModuleSettings
    version: int
    dynamic: tuple[tuple[re.Pattern[str], Mapping[str, Any]], ...] = ()

    def of(self, module: str) -> ModuleSettings:
        """Settings of one module."""
        for pattern, overrides in self.dynamic:
            if pattern.match(module):
                return ModuleSettings(
                    overrides.get("bits", self.base.bits),
                    overrides.get("group_size", self.base.group),
                    overrides.get("sym", self.base.sym),
                )
        return self.base


def parse_settings(block: Mapping[str, Any], folder: Path) -> GptqSettings:
    """Read the block of a folder.

    Raises:
        ModelError: a key is missing or has a value that GPTQ does not know.
    """
    where = f"{folder}: quantization_config"
    name = block.get("checkpoint_format") or block.get("format") or "gptq"
    version = {"gptq": 1, "gptq_v2": 2}.get(name) if isinstance(name, str) else None
    if version is None:
        raise ModelError(
            f"{where}: checkpoint_format {name!r} is not supported",
            hint="save the model as gptq or gptq_v2",
        )
    base: dict[str, Any] = {key: block.get(key) for key in ("bits", "group_size")}
    base["sym"] = block.get("sym", True)
    _check_values(base, where)
    dynamic = block.get("dynamic") or {}
    if not isinstance(dynamic, Mapping):
        raise ModelError(f"{where}: dynamic is {dynamic!r}, expected an object")
    rules = []
    for text, overrides in dynamic.items():
        if text.startswith("-:"):
            overrides = {}
        if not isinstance(overrides, Mapping):
            raise ModelError(f"{where}: dynamic[{text!r}] is not an object")
        _check_values(overrides, f"{where}: dynamic[{text!r}]")
        try:
            rules.append((re.compile(text.removeprefix("-:").removeprefix("+:")), overrides))
        except re.error as error:
            raise ModelError(
                f"{where}: dynamic[{text!r}] is not a regular expression: {error}"
            ) from None
    settings = ModuleSettings(base["bits"], base["group_size"], base["sym"])
    return GptqSettings(settings, version, tuple(rules))


def _check_values(values: Mapping[str, Any], where: str) -> None:
    if "bits" in values and (type(values["bits"]) is not int or values["bits"] not in BITS):
        raise ModelError(f"{where}: bits is {values['bits']!r}, expected one of {BITS}")
    group = values.get("group_size", -1)
    if type(group) is not int or not (group == -1 or group > 0):
        raise ModelError(f"{where}: group_size is {group!r}, expected -1 or a positive number")
    if type(values.get("sym", True)) is not bool:
        raise ModelError(f"{where}: sym is {values['sym']!r}, expected true or false")


def settings_for(plan: OutputPlan) -> GptqSettings:
    """Settings of an output: the commonest ones are the base.

    Version 1 stores zero points minus one and so cannot hold zero; it is taken where every linear
    is symmetric with 4 or 8 bits, since more programs read it.

    Raises:
        UsageError: nothing is quantized, or a tensor is that no reader expects packed.
    """
    counts: Counter[ModuleSettings] = Counter()
    for tensor in plan.tensors:
        if tensor.scheme is not None:
            if not plan.model.arch.is_linear_weight(tensor.name):
                raise UsageError(
                    f"the gptq container cannot hold a quantized {tensor.name}: "
                    "readers expect only the linears of the blocks to be packed",
                    hint="keep this tensor, or write gguf",
                )
            counts[ModuleSettings.of(tensor.scheme)] += 1
    if not counts:
        raise UsageError("the gptq container needs at least one quantized linear", hint="write hf")
    plain = all(module.sym and module.bits in (4, 8) for module in counts)
    return GptqSettings(counts.most_common(1)[0][0], 1 if plain else 2)


def build_block(plan: OutputPlan, settings: GptqSettings, *, desc_act: bool) -> dict[str, Any]:
    """Quantization block of an output.

    Args:
        plan: the output.
        settings: from ``settings_for``.
        desc_act: whether any tensor has its columns permuted.
    """
    block: dict[str, Any] = {
        "quant_method": "gptq",
        **settings.base.as_json(),
        "desc_act": desc_act,
        "checkpoint_format": "gptq" if settings.version == 1 else "gptq_v2",
        "pack_dtype": "int32",
        "lm_head": False,
        "meta": {"quantizer": [f"quantkit:{__version__}"]},
    }
    arch = plan.model.arch
    kept: list[str] = []
    others: dict[ModuleSettings, list[str]] = {}
    packed: list[str] = []
    for tensor in plan.tensors:
        module = tensor.name.removesuffix(_SUFFIX)
        if tensor.scheme is None:
            if arch.is_linear_weight(tensor.name):
                kept.append(module)
            continue
        packed.append(module)
        if (own := ModuleSettings.of(tensor.scheme)) != settings.base:
            others.setdefault(own, []).append(module)
    dynamic: dict[str, Any] = {f"-:{pattern}": {} for pattern in module_patterns(arch, kept)}
    for own, modules in others.items():
        dynamic |= {f"+:{pattern}": own.as_json() for pattern in module_patterns(arch, modules)}
    if dynamic:
        block["dynamic"] = dynamic
    if kept:
        # transformers does not read "dynamic"; this list tells it which linears are packed.
        block["modules_in_block_to_quantize"] = [packed]
    return block


def module_patterns(arch: Arch, modules: Iterable[str]) -> list[str]:
    """Regular expressions that match exactly these linears, one for each linear of a block."""
    layers: dict[str, list[str]] = {}
    for module in modules:
        layer, _, path = module.removeprefix(arch.blocks + ".").partition(".")
        layers.setdefault(path, []).append(layer)
    return [
        rf"^{re.escape(arch.blocks)}\.(?:{'|'.join(numbers)})\.{re.escape(path)}$"
        for path, numbers in layers.items()
    ]
