"""Codec: how one container spells quantized tensors in a safetensors folder.

The folder code knows files, shards and safety; a codec knows names, types and bits. A new container
of this kind is one new file with a Codec.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from quantkit.core.checkpoint import TensorInfo
from quantkit.core.output import OutputPlan, PlannedTensor
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.scheme import Scheme
from quantkit.formats.header import FileTensor
from quantkit.formats.safetensors_io import Entry
from quantkit.formats.weights import Weights


class Encoder(Protocol):
    """Spells the tensors of one output; may remember what it saw."""

    def encode(self, name: str, value: QuantizedTensor) -> dict[str, Tensor]:
        """File tensors of one quantized tensor, as ``Codec.entries`` announced them.

        Raises:
            ModelError: a value does not fit the container.
        """

    def quantization_config(self) -> dict[str, Any] | None:
        """Quantization block of config.json; asked for after the last tensor."""


class Decoder(Protocol):
    """Reads the tensors of one folder.

    Attributes:
        tensors: logical tensors under their Hugging Face names.
    """

    tensors: Mapping[str, TensorInfo]

    def load(self, name: str) -> Tensor | QuantizedTensor:
        """Read one tensor.

        Raises:
            ModelError: its bytes are damaged.
        """


class Codec(Protocol):
    """One container.

    Attributes:
        name: name of the container.
        quant_method: value of ``quant_method`` in config.json, None for plain floats.
        settings_file: file that repeats the quantization block for other tools, or None.
    """

    name: str
    quant_method: str | None
    settings_file: str | None

    def admits(self, scheme: Scheme, shape: tuple[int, ...]) -> str | None:
        """Why a tensor of that scheme and shape cannot be stored, or None."""

    def entries(self, tensor: PlannedTensor) -> tuple[Entry, ...]:
        """File tensors of one planned quantized tensor that is admitted."""

    def encoder(self, plan: OutputPlan) -> Encoder:
        """Begin an output.

        Raises:
            UsageError: the plan asks for what the container cannot say.
        """

    def decoder(self, weights: Weights, block: Mapping[str, Any], folder: Path) -> Decoder:
        """Begin reading a folder.

        Args:
            weights: its files.
            block: its quantization settings.
            folder: for messages.

        Raises:
            ModelError: settings and tensors do not fit together.
        """


def float_entry(tensor: PlannedTensor) -> Entry:
    """File tensor of an unquantized planned tensor."""
    return Entry(tensor.name, tensor.dtype, tensor.shape)


def plain_info(tensor: FileTensor) -> TensorInfo:
    """Logical tensor of a file tensor that is stored as it is."""
    return TensorInfo(tensor.name, tensor.shape, tensor.stored, tensor.dtype, None, tensor.nbytes)
