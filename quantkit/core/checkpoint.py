"""Checkpoint: a model at rest, whatever container holds it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quantkit.core.config import ModelConfig
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.scheme import Scheme
from quantkit.errors import ModelError


@dataclass(frozen=True)
class TensorInfo:
    """What a file says of one tensor before it is read.

    Attributes:
        name: Hugging Face name with its suffix, ``model.layers.0.mlp.up_proj.weight``.
        shape: logical shape, [N, K] for a linear, whatever the packing.
        stored: how it is stored, for people: ``BF16``, ``Q4_K``, ``gptq int4``.
        dtype: float type of an unquantized tensor; for a quantized one, the type it decodes to.
        scheme: value grid of a tensor that ``load`` returns as QuantizedTensor, else None.
        nbytes: bytes that it takes in the file, scales included.
    """

    name: str
    shape: tuple[int, ...]
    stored: str
    dtype: torch.dtype
    scheme: Scheme | None
    nbytes: int


@dataclass(frozen=True)
class Checkpoint:
    """A model at rest. Nothing is read until asked; never more than one tensor is held.

    Attributes:
        path: folder or file.
        format: name of the container.
        config: config.json as it stands (rebuilt from metadata for GGUF), without the
            quantization block.
        model: the same numbers, typed; None when no data file covers the family.
        tensors: every tensor under its Hugging Face name, in file order.
        reader: reads one tensor by name.
        companion_reader: returns tokenizer, chat template, generation config and other files that
            travel with the model: file name -> bytes.
        quant_method: name of the quantization that the source declares, or None.
        metadata: what else the container records (GGUF metadata, quantization block).
    """

    path: Path
    format: str
    config: Mapping[str, Any]
    model: ModelConfig | None
    tensors: Mapping[str, TensorInfo]
    reader: Callable[[str], Tensor | QuantizedTensor]
    companion_reader: Callable[[], dict[str, bytes]]
    quant_method: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def load(self, name: str) -> Tensor | QuantizedTensor:
        """Read one tensor as it is stored.

        Raises:
            ModelError: the checkpoint has no tensor of that name, or its bytes are damaged.
        """
        if name not in self.tensors:
            raise ModelError(f"{self.path} has no tensor {name!r}")
        return self.reader(name)

    def load_float(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Read one tensor as floats, decoded where it is quantized."""
        value = self.load(name)
        if isinstance(value, QuantizedTensor):
            return value.decode(dtype or torch.float32)
        return value if dtype is None else value.to(dtype)

    def load_rows(self, name: str, index: Tensor) -> Tensor:
        """Rows of a matrix as floats, [T] -> [T, K]; only those rows are decoded."""
        value = self.load(name)
        return value.rows(index).decode() if isinstance(value, QuantizedTensor) else value[index]

    def block(self, layer: int) -> Iterator[str]:
        """Full names of the tensors of block ``layer``."""
        prefix = self.require_model().arch.block_prefix(layer)
        return (name for name in self.tensors if name.startswith(prefix))

    def require_model(self) -> ModelConfig:
        """The typed config.

        Raises:
            ModelError: no data file covers the family.
        """
        if self.model is None:
            kind = self.config.get("model_type", "unknown")
            raise ModelError(
                f"{self.path}: architecture {kind!r} is not supported",
                hint="`quantkit list archs` shows the supported ones",
            )
        return self.model

    @property
    def is_tied(self) -> bool:
        """Whether the output head is the embedding matrix."""
        model = self.require_model()
        return model.tie_embeddings or f"{model.arch.head}.weight" not in self.tensors
