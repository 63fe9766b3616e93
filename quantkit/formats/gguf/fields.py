"""Typed reads of GGUF metadata: the wrong kind of value is an error that names the key."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from quantkit.errors import ModelError


class Fields:
    """Metadata of one file.

    Args:
        path: the file, for messages.
        values: key -> value.
        prefix: what ``{a}`` in a key stands for: the architecture.
    """

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path = path
        self.values = values
        self.prefix = prefix

    def __contains__(self, key: str) -> bool:
        return self._name(key) in self.values

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number; without a default the key must be there.

        Per-layer lists of one repeated number count as that number.
        """
        found = self._get(key, default)
        if isinstance(found, list) and found and all(item == found[0] for item in found):
            found = found[0]
        if isinstance(found, list):
            raise ModelError(
                f"{self.path}: {self._name(key)} differs between layers, which is not supported"
            )
        if not isinstance(found, int) or isinstance(found, bool):
            self._refuse(key, found, "a whole number")
        return found

    def real(self, key: str, default: float | None = None) -> float:
        """A number, as the shortest decimal that gives the stored float32: 1e-05, not 9.99e-06."""
        found = self._get(key, default)
        if isinstance(found, bool) or not isinstance(found, int | float):
            self._refuse(key, found, "a number")
        return float(str(np.float32(found)))

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        found = self._get(key, default)
        if not isinstance(found, str):
            self._refuse(key, found, "a string")
        return found

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        found = self._get(key, default)
        if not isinstance(found, bool):
            self._refuse(key, found, "true or false")
        return found

    def items(self, key: str, kind: type | tuple[type, ...]) -> list[Any] | None:
        """A list of values of one kind, None when the key is absent."""
        found = self.values.get(self._name(key))
        if found is None:
            return None
        if not isinstance(found, list) or not all(isinstance(item, kind) for item in found):
            self._refuse(key, found, "another kind of list")
        return found

    def _name(self, key: str) -> str:
        return key.replace("{a}", self.prefix)

    def _get(self, key: str, default: Any) -> Any:
        found = self.values.get(self._name(key), default)
        if found is None:
            raise ModelError(
                f"{self.path}: metadata has no {self._name(key)!r}",
                hint="the file does not describe a complete model",
            )
        return found

    def _refuse(self, key: str, found: Any, expected: str) -> NoReturn:
        shown = repr(found)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        raise ModelError(f"{self.path}: {self._name(key)} is {shown}, expected {expected}")
