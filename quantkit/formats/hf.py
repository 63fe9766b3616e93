"""The ``hf`` container: a Hugging Face folder of plain float tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from quantkit.core.checkpoint import TensorInfo
from quantkit.core.output import OutputPlan, PlannedTensor
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.scheme import Scheme
from quantkit.formats.codec import plain_info
from quantkit.formats.folder_format import FolderFormat
from quantkit.formats.safetensors_io import Entry
from quantkit.formats.weights import Weights


class HfCodec:
    """Plain tensors under their own names."""

    name = "hf"
    quant_method: str | None = None
    settings_file: str | None = None

    def admits(self, scheme: Scheme, shape: tuple[int, ...]) -> str | None:
        return "the hf container holds float tensors only"

    def entries(self, tensor: PlannedTensor) -> tuple[Entry, ...]:
        raise AssertionError(f"{tensor.name} is quantized, which hf never admits")

    def encoder(self, plan: OutputPlan) -> "HfEncoder":
        return HfEncoder()

    def decoder(self, weights: Weights, block: Mapping[str, Any], folder: Path) -> "HfDecoder":
        return HfDecoder(weights)


class HfEncoder:
    """Has nothing to spell."""

    def encode(self, name: str, value: QuantizedTensor) -> dict[str, Tensor]:
        raise AssertionError(f"{name} is quantized, which hf never admits")

    def quantization_config(self) -> dict[str, Any] | None:
        return None


class HfDecoder:
    """Every file tensor is a logical tensor."""

    def __init__(self, weights: Weights) -> None:
        self._read = weights.read
        self.tensors: Mapping[str, TensorInfo] = {
            name: plain_info(tensor) for name, tensor in weights.tensors.items()
        }

    def load(self, name: str) -> Tensor | QuantizedTensor:
        return self._read(name)


FORMAT = FolderFormat(HfCodec())
