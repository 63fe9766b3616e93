"""Containers: reading and writing models on disk.

``open_model`` takes whatever a person calls a model; ``FORMATS`` holds the containers by name.
"""

import os
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from quantkit.core.checkpoint import Checkpoint
from quantkit.core.output import Format
from quantkit.core.registry import Registry
from quantkit.errors import ModelError, UsageError
from quantkit.formats.hub import download, is_hub_id
from quantkit.formats.json_file import quantization_of, read_config


def _hf() -> Format:
    from quantkit.formats.hf import FORMAT

    return FORMAT


def _gptq() -> Format:
    from quantkit.formats.gptq import FORMAT

    return FORMAT


def _gguf() -> Format:
    format: Format = import_module("quantkit.formats.gguf").FORMAT
    return format


FORMATS: Registry[Format] = Registry("format", {"hf": _hf, "gptq": _gptq, "gguf": _gguf})


def open_model(ref: str | Path, *, revision: str | None = None) -> Checkpoint:
    """Open a model for reading.

    Args:
        ref: a folder, a GGUF file, or a hub id ``org/name``. What looks like a path never leads to
            the hub.
        revision: branch, tag or commit of a hub model.

    Raises:
        ModelError: there is no such model, or it is damaged or not supported.
        UsageError: a revision is given for a local model.
    """
    path = Path(os.path.expanduser(ref))
    if isinstance(ref, str) and is_hub_id(ref):
        path = download(ref, revision=revision)
    elif revision is not None:
        raise UsageError(f"{ref} is a local model, which has no revision {revision!r}")
    if not os.path.exists(path):
        raise ModelError(
            f"no such folder or file: {ref}",
            hint="give a model folder, a GGUF file, or a hub id such as org/name",
        )
    name = detect_format(path)
    if name is None:
        _refuse(path)
    return FORMATS.get(name).open(path)


def detect_format(path: Path) -> str | None:
    """Name of the container at ``path``, or None."""
    if path.suffix == ".gguf" and path.is_file():
        return "gguf"  # a damaged GGUF file should be told so
    return next((name for name in FORMATS if FORMATS.get(name).sniff(path)), None)


def _refuse(path: Path) -> NoReturn:
    """Say why no container fits."""
    if path.is_dir():
        method, _ = quantization_of(path, read_config(path))
        raise ModelError(
            f"{path} is already quantized by {method}, which this version cannot read",
            hint="give the original, unquantized model",
        )
    raise ModelError(
        f"{path} is not a model file that quantkit reads",
        hint="give the folder that holds config.json and the weights, or a GGUF file",
    )
