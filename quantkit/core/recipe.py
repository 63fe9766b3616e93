"""Recipe: everything needed to repeat a run, from presets, files, flags and ``--set``."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from quantkit.core.registry import suggest
from quantkit.core.scheme import Scheme
from quantkit.errors import RecipeError, UsageError

KEEP = "keep"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MethodEntry(_Part):
    """One method with its options."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)


class Rule(_Part):
    """Tensors whose name the regex matches (search, not full match) get a scheme, or stay float."""

    pattern: str
    scheme: str

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"{value!r} is not a regular expression: {error}") from None
        return value

    @field_validator("scheme")
    @classmethod
    def _parses(cls, value: str) -> str:
        if value != KEEP:
            Scheme.parse(value)
        return value


class Calibration(_Part):
    """What the model reads while it is quantized."""

    datasets: tuple[str, ...] = ("builtin",)
    num_samples: int = Field(default=128, ge=1)
    seq_len: int = Field(default=512, ge=2)
    seed: int = 0


class Output(_Part):
    """What is written."""

    format: str | None = None
    type: str | None = None
    keep_dtype: str | None = None
    shard_bytes: int = Field(default=5_000_000_000, ge=1_000_000)


class Recipe(_Part):
    """A run of ``quantkit quantize``.

    Attributes:
        model: folder, GGUF file or hub id.
        methods: in the order of their use; the last one that rounds wins.
        scheme: value grid of the linears; its group size may be left out and is then chosen.
        rules: exceptions, first match wins.
        calibration: texts and their amounts.
        output: container, its type and what the kept tensors are stored as.
        gates: expressions that must not hold for the finished file.
    """

    model: str
    methods: tuple[MethodEntry, ...] = (MethodEntry(name="gptq"),)
    scheme: str = "w4a16"
    rules: tuple[Rule, ...] = ()
    calibration: Calibration = Calibration()
    output: Output = Output()

    @field_validator("scheme")
    @classmethod
    def _parses(cls, value: str) -> str:
        Scheme.parse(value)
        return value

    def canonical(self) -> str:
        """The same text for the same recipe: JSON with sorted keys."""
        return json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"))

    def hash(self) -> str:
        """SHA-256 of the canonical text."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()


def preset_names() -> list[str]:
    """Names of the shipped presets."""
    return sorted(
        path.name[:-5] for path in _preset_folder().iterdir() if path.name.endswith(".yaml")
    )


def preset_summary(name: str) -> str:
    """First comment line of a preset."""
    text = (_preset_folder() / f"{name}.yaml").read_text(encoding="utf-8")
    return text.splitlines()[0].lstrip("# ") if text.startswith("#") else ""


def resolve_recipe(
    model: str,
    *,
    recipe: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
) -> Recipe:
    """Build the recipe of a run: file or preset, then flags, then ``--set KEY=VALUE``.

    Args:
        model: folder, GGUF file or hub id.
        recipe: preset name or YAML file.
        overrides: flags that were given: methods, bits, group_size, asym, scheme, format, type,
            datasets, num_samples, seq_len, seed, keep_dtype, rules, shard_size; None or empty means
            not given.
        settings: ``KEY=VALUE``; the key is a dotted recipe field or an option of a method.

    Raises:
        RecipeError: unknown key or a value that cannot be meant.
        UsageError: flags that exclude each other.
    """
    tree = _load(recipe) if recipe else {}
    tree["model"] = model
    _apply_flags(tree, {k: v for k, v in (overrides or {}).items() if v not in (None, [], (), "")})
    for setting in settings:
        _apply_setting(tree, setting)
    return _validate(tree, recipe or "recipe")


def _preset_folder() -> Any:
    return resources.files("quantkit") / "configs" / "recipes"


def _load(name: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read a preset or file, with what it extends."""
    if name in seen:
        raise RecipeError(f"recipe {name!r} extends itself: {' -> '.join((*seen, name))}")
    if name in preset_names():
        text = (_preset_folder() / f"{name}.yaml").read_text(encoding="utf-8")
    else:
        path = Path(name)
        if not path.is_file():
            raise RecipeError(f"no recipe {name!r}", hint=suggest(name, preset_names(), "recipe"))
        text = path.read_text(encoding="utf-8")
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise RecipeError(f"{name} does not hold a mapping")
    if "methods" in tree:
        tree["methods"] = _method_entries(tree["methods"], name)
    if "rules" in tree:
        tree["rules"] = [_rule(text) for text in tree["rules"] or []]
    parent = tree.pop("extends", None)
    return tree if parent is None else _merge(_load(str(parent), (*seen, name)), tree)


def _merge(base: dict[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        old = merged.get(key)
        merged[key] = (
            _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return merged


def _method_entries(value: Any, where: str) -> list[dict[str, Any]]:
    """Methods as ``[gptq, {awq: {option: value}}]``."""
    entries = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str):
            entries.append({"name": item, "options": {}})
        elif isinstance(item, dict) and len(item) == 1:
            (name, options), *_ = item.items()
            entries.append({"name": name, "options": options or {}})
        else:
            raise RecipeError(
                f"{where}: methods holds {item!r}", hint="write [gptq] or [{gptq: {damp: 0.01}}]"
            )
    return entries


def _rule(text: Any) -> dict[str, str]:
    pattern, separator, scheme = str(text).rpartition("=")
    if not separator or not pattern:
        raise RecipeError(
            f"rule {text!r} is not REGEX=SCHEME", hint="for example 'down_proj=w8a16'"
        )
    return {"pattern": pattern, "scheme": scheme}


def _apply_flags(tree: dict[str, Any], flags: Mapping[str, Any]) -> None:
    if "methods" in flags:
        tree["methods"] = _method_entries(list(flags["methods"]), "--method")
    if "scheme" in flags and flags.keys() & {"bits", "group_size", "asym"}:
        raise UsageError(
            "--scheme already says bits, group size and symmetry", hint="drop the others"
        )
    if "scheme" in flags:
        tree["scheme"] = flags["scheme"]
    elif flags.keys() & {"bits", "group_size", "asym"}:
        tree["scheme"] = _edit_scheme(str(tree.get("scheme", "w4a16")), flags)
    calibration = dict(tree.get("calibration") or {})
    for key in ("datasets", "num_samples", "seq_len", "seed"):
        if key in flags:
            calibration[key] = flags[key]
    output = dict(tree.get("output") or {})
    for flag, key in (
        ("format", "format"),
        ("type", "type"),
        ("keep_dtype", "keep_dtype"),
        ("shard_size", "shard_bytes"),
    ):
        if flag in flags:
            output[key] = flags[flag]
    if calibration:
        tree["calibration"] = calibration
    if output:
        tree["output"] = output
    if "rules" in flags:  # flags come before the file's own rules: first match wins
        tree["rules"] = [_rule(text) for text in flags["rules"]] + list(tree.get("rules") or [])


def _edit_scheme(text: str, flags: Mapping[str, Any]) -> str:
    """A scheme text with bits, group size or symmetry replaced."""
    match = re.fullmatch(r"w\d+(a\d+)(-g(?:\d+|row))?(-asym|-min)?(.*)", text)
    if match is None:
        raise UsageError(
            f"--bits and --group-size cannot edit scheme {text!r}", hint="use --scheme"
        )
    act, group, offset, rest = match.groups()
    bits = flags.get("bits") or int(re.findall(r"\d+", text)[0])
    if "group_size" in flags:
        size = int(flags["group_size"])
        if size != -1 and size <= 0:
            raise UsageError(f"--group-size {size} is not a positive number or -1")
        group = "-grow" if size == -1 else f"-g{size}"
    if flags.get("asym"):
        offset = "-asym"
    return f"w{bits}{act}{group or ''}{offset or ''}{rest}"


def _apply_setting(tree: dict[str, Any], setting: str) -> None:
    key, separator, text = setting.partition("=")
    if not separator:
        raise UsageError(f"--set {setting!r} is not KEY=VALUE")
    value = yaml.safe_load(text)
    if key.split(".")[0] in Recipe.model_fields:
        node = tree
        *path, last = key.split(".")
        for name in path:
            node = node.setdefault(name, {})
            if not isinstance(node, dict):
                raise RecipeError(f"--set {key}: {name} has no fields")
        node[last] = value
        return
    methods = tree.setdefault("methods", [{"name": "gptq", "options": {}}])
    for entry in methods:  # checked against each method's options when the run is planned
        entry["options"] = {**entry["options"], key: value}


def _validate(tree: Mapping[str, Any], where: str) -> Recipe:
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            name = str(first["loc"][-1])
            raise RecipeError(
                f"{where}: unknown key {path!r}", hint=suggest(name, _known(first["loc"]), "key")
            ) from None
        message = first["msg"].removeprefix("Value error, ")
        raise RecipeError(f"{where}: {path}: {message}") from None


def _known(path: tuple[int | str, ...]) -> list[str]:
    parts: dict[str, type[_Part]] = {"calibration": Calibration, "output": Output}
    model = parts.get(str(path[0]), Recipe) if len(path) > 1 else Recipe
    return list(model.model_fields)
