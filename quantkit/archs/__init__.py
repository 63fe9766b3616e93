"""Model families, one data file each; looked up by the ``model_type`` of config.json."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from quantkit.core.arch import Arch
from quantkit.core.config import ModelConfig, read_model_config
from quantkit.core.registry import Registry
from quantkit.errors import ModelError

_NAMES = ("llama", "mistral", "qwen2", "qwen3", "phi3")


def _creator(name: str) -> Any:
    return lambda: import_module(f"quantkit.archs.{name}").ARCH


ARCHS: Registry[Arch] = Registry(
    "architecture", {name: _creator(name) for name in _NAMES}, error=ModelError
)


def find_arch(config: Mapping[str, Any]) -> Arch | None:
    """The family of a config.json, or None when no data file covers it."""
    kind = config.get("model_type")
    return next((arch for name in ARCHS if kind in (arch := ARCHS.get(name)).model_types), None)


def find_gguf_arch(name: str, *, hf_class: str | None = None) -> Arch | None:
    """The family for a GGUF ``general.architecture``; llama stands for llama and mistral."""
    found = [arch for key in ARCHS if (arch := ARCHS.get(key)).gguf_arch == name]
    return next((arch for arch in found if arch.hf_class == hf_class), found[0] if found else None)


def model_config(config: Mapping[str, Any]) -> ModelConfig | None:
    """Typed config of a covered family, None for an unknown one.

    Raises:
        ModelError: the family is known but its config is not valid.
    """
    arch = find_arch(config)
    return None if arch is None else read_model_config(arch, config)
