"""What every container offers: the Format protocol, its plan of tensors and its writer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from quantkit.core.checkpoint import Checkpoint
from quantkit.core.config import ModelConfig
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.scheme import Scheme


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor that will be written.

    Attributes:
        name: Hugging Face name with its suffix.
        shape: logical shape.
        scheme: value grid, or None for a float tensor.
        dtype: float type of an unquantized tensor.
    """

    name: str
    shape: tuple[int, ...]
    scheme: Scheme | None
    dtype: torch.dtype


@dataclass(frozen=True)
class OutputPlan:
    """Everything that a writer must know before the first tensor arrives.

    Attributes:
        config: source config.json.
        model: the same, typed.
        tensors: the complete inventory, in the order of writing.
        companions: file name -> bytes: tokenizer, chat template, generation config and others.
        record: what quantkit.json holds: recipe, hash, versions, data digest.
        shard_bytes: largest size of one safetensors shard.
    """

    config: Mapping[str, Any]
    model: ModelConfig
    tensors: tuple[PlannedTensor, ...]
    companions: Mapping[str, bytes]
    record: Mapping[str, Any]
    shard_bytes: int = 5_000_000_000


class Writer(Protocol):
    """Streams one model to ``OUT.partial``; ``close`` moves it to ``OUT`` in one step.

    Use as a context manager: leaving it by an exception removes the partial output.
    """

    def put(self, name: str, value: Tensor | QuantizedTensor) -> None:
        """Write one planned tensor; its bytes leave memory with this call."""

    def close(self, report: Mapping[str, Any]) -> None:
        """Write the report, fsync, check that no planned tensor is missing, rename."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class Format(Protocol):
    """One container."""

    name: str

    def sniff(self, path: Path) -> bool:
        """Whether ``path`` holds this container; cheap, reads headers only."""

    def admits(self, scheme: Scheme, shape: tuple[int, ...]) -> str | None:
        """Why a tensor of that scheme and shape cannot be stored, or None when it can."""

    def nbytes(self, tensor: PlannedTensor) -> int:
        """Exact bytes of the tensor in the file, scales included."""

    def open(self, path: Path) -> Checkpoint:
        """Open for reading.

        Raises:
            ModelError: the file is damaged, incomplete or not supported.
        """

    def writer(self, path: Path, plan: OutputPlan, *, force: bool = False) -> Writer:
        """Start writing ``path``.

        Raises:
            UsageError: ``path`` exists and ``force`` is not set.
            ResourceError: the place cannot be written or has too little space.
        """
