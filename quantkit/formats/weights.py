"""Weights of a model folder: which files hold which tensor, checked in both directions."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from quantkit.errors import ModelError
from quantkit.formats.access import reading
from quantkit.formats.header import FileTensor, read_header
from quantkit.formats.json_file import read_json_object
from quantkit.formats.safetensors_io import SafetensorsReader
from quantkit.formats.torch_bin import BinReader, list_tensors

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Weights:
    """All tensors of a folder.

    Attributes:
        tensors: name -> what its file declares, in file order.
        read: reads one by name.
    """

    tensors: Mapping[str, FileTensor]
    read: Callable[[str], Tensor]


@dataclass(frozen=True)
class _Kind:
    """Names and functions of one kind of weight file."""

    single: str
    index: str
    shard: re.Pattern[str]
    list_tensors: Callable[[Path], dict[str, FileTensor]]
    reader: Callable[[Path, Mapping[str, FileTensor]], Callable[[str], Tensor]]


_KINDS = (
    _Kind(
        SINGLE,
        INDEX,
        re.compile(r"model-\d{5}-of-\d{5}\.safetensors"),
        read_header,
        SafetensorsReader,
    ),
    _Kind(
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        re.compile(r"pytorch_model-\d{5}-of-\d{5}\.bin"),
        list_tensors,
        BinReader,
    ),
)


def open_weights(folder: Path) -> Weights:
    """Find and check the weight files of a folder; safetensors come before .bin files.

    Raises:
        ModelError: there are none, one is missing, damaged or left over, or index and files
            disagree.
    """
    with reading(folder):
        present = {path.name for path in folder.iterdir()}
    for kind in _KINDS:
        shards = sorted(name for name in present if kind.shard.fullmatch(name))
        if kind.index in present:
            tensors = _open_indexed(folder, kind, present, shards)
        elif shards:
            raise ModelError(
                f"{folder} holds {shards[0]} but no {kind.index}",
                hint=f"fetch {kind.index} too, or remove shards that another save left there",
            )
        elif kind.single in present:
            tensors = kind.list_tensors(folder / kind.single)
        else:
            continue
        return Weights(tensors, kind.reader(folder, tensors))
    others = sorted(
        n for n in present if n.endswith((".safetensors", ".bin", ".pt", ".gguf", ".pth"))
    )
    found = f"; it holds {', '.join(others[:3])}" if others else ""
    hint = (
        "a GGUF file is given by its own path" if any(n.endswith("gguf") for n in others) else None
    )
    raise ModelError(
        f"{folder} has no weights: neither {SINGLE} nor {INDEX}{found}",
        hint=hint or "download the model's weights into the folder",
    )


def _open_indexed(
    folder: Path, kind: _Kind, present: set[str], shards: list[str]
) -> dict[str, FileTensor]:
    index = folder / kind.index
    weight_map = _read_weight_map(index)
    files = sorted(set(weight_map.values()))
    missing = [name for name in files if name not in present]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(
            f"{index} names {missing[0]}{more}, which is not in the folder",
            hint="the download or copy was interrupted; fetch the missing files",
        )
    stray = [name for name in (*shards, kind.single) if name in present and name not in files]
    if stray:
        raise ModelError(
            f"{folder} holds {stray[0]}, which {kind.index} does not name",
            hint="another save left it there; remove what does not belong to this model",
        )
    tensors: dict[str, FileTensor] = {}
    for file in files:
        for name, tensor in kind.list_tensors(folder / file).items():
            if name in tensors:
                raise ModelError(f"{folder}: {tensors[name].file} and {file} both hold {name!r}")
            if name not in weight_map:
                raise ModelError(
                    f"{folder / file} holds {name!r}, which {kind.index} does not list"
                )
            tensors[name] = tensor
    for name, file in weight_map.items():
        if name not in tensors or tensors[name].file != file:
            raise ModelError(
                f"{index} places {name!r} in {file}, which does not hold it",
                hint="index and shards come from different saves; fetch the model again",
            )
    return tensors


def _read_weight_map(index: Path) -> dict[str, str]:
    """weight_map of an index, every file name checked before any file is opened."""
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index} has no weight_map")
    return {name: check_plain_name(file, f"{index}: {name!r}") for name, file in weight_map.items()}


def check_plain_name(name: Any, where: str) -> str:
    """Return ``name`` if it is a plain file name; joined to a folder it stays in the folder.

    Raises:
        ModelError: it is empty, absolute, has a separator, climbs up or holds a control character.
    """
    if (
        not isinstance(name, str)
        or name in ("", ".", "..")
        or re.search(r"[/\\\x00-\x1f\x7f]", name)
        or len(name) > 255
    ):
        raise ModelError(
            f"{where} points to {name!r}, which is not a plain file name",
            hint="the file is damaged or hostile; every file of a model lies in its own folder",
        )
    return name
