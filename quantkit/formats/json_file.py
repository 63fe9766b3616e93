"""Reading JSON files of a model folder: config.json and what it says of quantization."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantkit.errors import ModelError
from quantkit.formats.access import reading
from quantkit.formats.damage import likely_cause

CONFIG = "config.json"
QUANTIZE_CONFIG = "quantize_config.json"
MODELOPT_CONFIG = "hf_quant_config.json"
MAX_JSON_BYTES = 100_000_000
QUANTIZATION_KEYS = ("quantization_config", "compression_config")


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        ModelError: the file is missing, too large, not JSON or not an object.
    """
    with reading(path):
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise ModelError(f"{path} has {size} bytes, more than a JSON file of a model can have")
        data = path.read_bytes()
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        cause, hint = likely_cause(data[:64])
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ModelError(f"{path} is not valid JSON{cause}: {reason}", hint=hint) from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds a JSON {type(value).__name__}, expected an object")
    return value


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model folder.

    Raises:
        ModelError: it is missing or damaged.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise ModelError(
            f"{folder} has no config.json",
            hint="give the folder that holds the model's config.json",
        )
    return read_json_object(path)


def quantization_of(
    folder: Path, config: Mapping[str, Any]
) -> tuple[str | None, Mapping[str, Any]]:
    """Name and settings of the quantization that a folder declares; (None, {}) for a float model.

    config.json decides; quantize_config.json and hf_quant_config.json count where it is silent.

    Raises:
        ModelError: the settings are not an object.
    """
    for key in QUANTIZATION_KEYS:
        block = config.get(key)
        if block is None:
            continue
        if not isinstance(block, Mapping):
            raise ModelError(f"{folder / CONFIG}: {key} is {block!r}, expected an object")
        return _method(block), block
    if (folder / QUANTIZE_CONFIG).is_file():
        block = read_json_object(folder / QUANTIZE_CONFIG)
        return str(block.get("quant_method") or block.get("method") or "gptq").lower(), block
    if (folder / MODELOPT_CONFIG).is_file():
        return "modelopt", read_json_object(folder / MODELOPT_CONFIG)
    return None, {}


def _method(block: Mapping[str, Any]) -> str:
    """Name of the method; older bitsandbytes folders give only their flags."""
    if method := block.get("quant_method"):
        return str(method).lower()
    if block.get("load_in_8bit") or block.get("load_in_4bit"):
        return "bitsandbytes"
    return "an unnamed method"
