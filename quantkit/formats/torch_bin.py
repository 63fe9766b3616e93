"""Weights in torch's own .bin files, read without ever running code from them.

``torch.load(weights_only=True)`` admits tensors and plain containers only; the map keeps memory
small.
"""

import pickle
import threading
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from quantkit.errors import ModelError
from quantkit.formats.access import reading
from quantkit.formats.header import FileTensor

_HINT = "get the safetensors version, or save the weights again with safetensors"
# What a damaged or hostile file makes torch's unpickler raise.
_DAMAGE = (
    RuntimeError,
    OSError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
)


def list_tensors(path: Path) -> dict[str, FileTensor]:
    """Tensors of a .bin file.

    Raises:
        ModelError: the file is damaged, wants to run code, or holds anything but tensors.
    """
    return {
        name: FileTensor(name, tensor.dtype, tuple(tensor.shape), path.name)
        for name, tensor in _load(path).items()
    }


class BinReader:
    """Reads tensors of a folder's .bin files; one file is mapped at a time."""

    def __init__(self, folder: Path, tensors: Mapping[str, FileTensor]) -> None:
        self._folder = folder
        self._tensors = tensors
        self._lock = threading.Lock()
        self._file = ""
        self._state: Mapping[str, Tensor] = {}

    def __call__(self, name: str) -> Tensor:
        """The tensor of that name.

        Raises:
            ModelError: the file changed since it was opened.
        """
        file = self._tensors[name].file
        with self._lock:
            if file != self._file:
                self._state, self._file = _load(self._folder / file), file
            if name not in self._state:
                raise ModelError(f"{self._folder / file} no longer holds {name!r}")
            return self._state[name]


def _load(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ModelError(f"{path} is not a regular file")
    with reading(path):
        path.open("rb").close()
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError:
        raise ModelError(
            f"{path} holds more than tensors, and unpickling it could run code", hint=_HINT
        ) from None
    except _DAMAGE as error:
        first = str(error).strip().split("\n")[0]
        raise ModelError(f"{path} is damaged or in an old form: {first}", hint=_HINT) from None
    if not isinstance(state, dict) or not state:
        raise ModelError(f"{path} holds no table of tensors", hint=_HINT)
    for name, value in state.items():
        plain = (
            isinstance(value, Tensor) and value.layout == torch.strided and not value.is_quantized
        )
        if not isinstance(name, str) or not plain:
            raise ModelError(f"{path}: {name!r} is not a plain tensor", hint=_HINT)
    return {name: value.detach() for name, value in state.items()}
