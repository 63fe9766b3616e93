"""What people write on a command line: 32k tokens, 5GB, 12GiB, a model."""

import os
import re
from typing import Any

import rich_click as click

from quantkit.errors import ModelError

# As vLLM reads them: small letters are decimal, capitals binary.
_COUNT_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3}
_COUNT_UNITS |= {"K": 1024, "M": 1024**2, "G": 1024**3}
_SIZE_UNITS = {"": 1, "b": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_SIZE_UNITS |= {f"{unit}b": value for unit, value in _SIZE_UNITS.items() if unit not in ("", "b")}
_SIZE_UNITS |= {"kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4}
_NUMBER = re.compile(r"(?P<number>-?\d+(\.\d+)?)\s*(?P<unit>[A-Za-z]*)")


def parse_count(text: str) -> int | None:
    """Read ``512``, ``32k`` (32000) or ``32K`` (32768); None when it is neither."""
    return _parse(text, _COUNT_UNITS)


def parse_size(text: str) -> int | None:
    """Read bytes: ``500MB`` (decimal), ``12GiB`` (binary), ``1048576``; None when it is neither."""
    return _parse(text.lower(), _SIZE_UNITS)


def _parse(text: str, units: dict[str, int]) -> int | None:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match["unit"] not in units:
        return None
    value = float(match["number"]) * units[match["unit"]]
    return int(value) if value.is_integer() else None


class CountType(click.ParamType):  # type: ignore[type-arg]  # generic in new releases only
    """A whole number, with k, m, g or K, M, G behind it if wanted."""

    name = "integer"

    def __init__(self, minimum: int = 1) -> None:
        self.minimum = minimum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the number, or fail with a usage error."""
        number = value if isinstance(value, int) else parse_count(value)
        if number is None:
            self.fail(f"{value!r} is not a whole number such as 512, 32k or 32K", param, ctx)
        if number < self.minimum:
            self.fail(f"{value} is less than {self.minimum}", param, ctx)
        return number


class SizeType(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes: 5GB, 12GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the size, or fail with a usage error."""
        number = value if isinstance(value, int) else parse_size(value)
        if number is None or number <= 0:
            self.fail(f"{value!r} is not a size such as 5GB or 12GiB", param, ctx)
        return number


class ModelType(click.ParamType):  # type: ignore[type-arg]
    """A folder, a GGUF file or a hub id; a missing path is told before torch is loaded."""

    name = "model"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Pass the reference on.

        Raises:
            ModelError: it is a path, and nothing is there.
        """
        ref = str(value)
        is_path = ref.startswith((".", "/", "~")) or ref.endswith(".gguf") or ref.count("/") != 1
        if is_path and not os.path.lexists(os.path.expanduser(ref)):
            raise ModelError(
                f"no such folder or file: {ref}",
                hint="give a model folder, a GGUF file, or a hub id such as org/name",
            )
        return ref


COUNT = CountType()
SIZE = SizeType()
MODEL = ModelType()
