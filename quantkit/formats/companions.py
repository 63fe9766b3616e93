"""Companion files: what travels with a model beside its weights and config."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from quantkit.formats.access import reading
from quantkit.formats.json_file import CONFIG, MODELOPT_CONFIG, QUANTIZE_CONFIG

MAX_COMPANION_BYTES = 64_000_000
RECORD = "quantkit.json"
# Written anew for every output, or true of the source only.
OWN_FILES = (CONFIG, RECORD, QUANTIZE_CONFIG, MODELOPT_CONFIG, "quant_config.json")
_TRAVELS = (
    "*.json",
    "*.jinja",
    "*.txt",
    "*.model",
    "*.tiktoken",
    "*.md",
    "LICENSE*",
    "LICENCE*",
    "NOTICE*",
    "COPYING*",
    "USE_POLICY*",
)


@dataclass(frozen=True)
class Companions:
    """Names of the files that travel, and of those that stay behind with the reason."""

    names: tuple[str, ...]
    left_out: dict[str, str]


def list_companions(folder: Path) -> Companions:
    """Decide which files of a model folder travel with the model.

    Raises:
        ResourceError: the folder cannot be read.
    """
    names, left_out = [], {}
    with reading(folder):
        for path in sorted(folder.iterdir()):
            name = path.name
            if name in OWN_FILES or name.startswith(".") or name.endswith(".index.json"):
                continue
            if not path.is_file():
                left_out[name] = "not a file"
            elif not any(fnmatchcase(name, pattern) for pattern in _TRAVELS):
                left_out[name] = "code" if name.endswith(".py") else "not a companion file"
            elif path.stat().st_size > MAX_COMPANION_BYTES:
                left_out[name] = f"larger than {MAX_COMPANION_BYTES} bytes"
            else:
                names.append(name)
    return Companions(tuple(names), left_out)


def read_companions(folder: Path) -> dict[str, bytes]:
    """Companion files of a model folder: file name -> bytes.

    Raises:
        ModelError: a file cannot be read.
        ResourceError: the permission to read one is missing.
    """
    found = {}
    for name in list_companions(folder).names:
        with reading(folder / name):
            found[name] = (folder / name).read_bytes()
    return found
