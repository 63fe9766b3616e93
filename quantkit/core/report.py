"""Report: the one JSON document that every command can print."""

import json
import math
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from quantkit import __version__
from quantkit.errors import EXIT_BUG, QuantkitError


@dataclass
class Report:
    """What a command did; ``document()`` is its JSON envelope.

    Attributes:
        command: verb.
        args: flags as given.
        recipe_hash: hash of the resolved recipe, where there is one.
        result: the verb's own result.
        warnings: one entry per warning: code, message, and the tensor it is about.
    """

    command: str
    args: Mapping[str, Any]
    recipe_hash: str | None = None
    result: dict[str, Any] = field(default_factory=dict)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.time)

    def warn(self, code: str, message: str, tensor: str | None = None) -> None:
        """Record a warning."""
        self.warnings.append({"code": code, "message": message, "tensor": tensor})

    def document(self, error: BaseException | None = None) -> dict[str, Any]:
        """The envelope; strictly valid JSON, non-finite numbers become null."""
        document: dict[str, Any] = clean(
            {
                "quantkit": __version__,
                "command": self.command,
                "status": "error" if error else "ok",
                "args": dict(self.args),
                "recipe_hash": self.recipe_hash,
                "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started)),
                "seconds": round(time.time() - self.started, 3),
                "environment": environment(),
                "result": self.result,
                "warnings": self.warnings,
                "error": error_document(error) if error else None,
            }
        )
        return document


def error_document(error: BaseException) -> dict[str, Any]:
    """Type, message, hint and exit code of a failure."""
    known = isinstance(error, QuantkitError)
    return {
        "type": type(error).__name__,
        "message": str(error),
        "hint": error.hint if isinstance(error, QuantkitError) else None,
        "exit_code": error.exit_code if isinstance(error, QuantkitError) and known else EXIT_BUG,
    }


def environment() -> dict[str, str | None]:
    """Versions that numbers depend on, read without importing the packages."""

    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    names = ("torch", "transformers", "safetensors", "tokenizers", "gguf", "triton")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def clean(value: Any) -> Any:
    """Copy of a JSON value in which numbers that JSON cannot hold are null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(v) for v in value]
    return value if value is None or isinstance(value, (str, int, bool)) else str(value)


def dumps(value: Any) -> str:
    """JSON text of a report: sorted nowhere, indented, never NaN."""
    return json.dumps(clean(value), indent=2, ensure_ascii=False, allow_nan=False)
