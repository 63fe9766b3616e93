"""Reading GPTQ folders of either version, act-order files included."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from quantkit.core.checkpoint import TensorInfo
from quantkit.core.packing import WORD_BITS, unpack
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.scheme import WHOLE_ROW, ScaleLevel, Scheme
from quantkit.errors import ModelError
from quantkit.formats.codec import plain_info
from quantkit.formats.gptq_config import GptqSettings, ModuleSettings
from quantkit.formats.header import FileTensor
from quantkit.formats.weights import Weights

_PARTS = ("qweight", "qzeros", "scales", "g_idx")
_SCALE_DTYPES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}
_UNPACK_ROWS = 1024


@dataclass(frozen=True)
class _Packed:
    """One packed linear: its file tensors by part, and its logical tensor."""

    parts: Mapping[str, FileTensor]
    info: TensorInfo
    scheme: Scheme


class GptqDecoder:
    """Reads the tensors of one folder; see ``codec.Decoder``.

    Raises:
        ModelError: a part of a packed linear is missing, or its shapes and settings disagree.
    """

    def __init__(self, weights: Weights, settings: GptqSettings, folder: Path) -> None:
        self._read = weights.read
        self._version = settings.version
        self._folder = folder
        self._packed: dict[str, _Packed] = {}
        tensors: dict[str, TensorInfo] = {}
        for name, tensor in weights.tensors.items():
            base, _, part = name.rpartition(".")
            if part not in _PARTS or f"{base}.qweight" not in weights.tensors:
                if part in ("qzeros", "g_idx"):
                    raise ModelError(f"{folder}: {base}.qweight is missing beside {name}")
                tensors[name] = plain_info(tensor)
            elif part == "qweight":
                packed = self._describe(base, weights.tensors, settings.of(base))
                if packed.info.name in weights.tensors:
                    raise ModelError(f"{folder} holds both {packed.info.name} and {name}")
                self._packed[packed.info.name] = packed
                tensors[packed.info.name] = packed.info
        if not self._packed:
            raise ModelError(
                f"{folder} declares gptq quantization but holds no packed linear",
                hint="remove quantization_config from config.json if the weights are floats",
            )
        self.tensors: Mapping[str, TensorInfo] = tensors

    def load(self, name: str) -> Tensor | QuantizedTensor:
        """Read one tensor; a packed linear comes as QuantizedTensor.

        Raises:
            ModelError: zero points or groups are not what the settings say.
        """
        packed = self._packed.get(name)
        if packed is None:
            return self._read(name)
        scheme, (rows, columns) = packed.scheme, packed.info.shape
        parts = {part: self._read(tensor.name) for part, tensor in packed.parts.items()}
        perm = self._permutation(name, parts.get("g_idx"), scheme, columns)
        return QuantizedTensor(
            scheme=scheme,
            codes=_unpack_columns(parts["qweight"], scheme.bits, rows, columns, perm),
            scales=(parts["scales"].T.contiguous(),),
            zeros=self._zeros(name, parts["qzeros"], scheme, rows),
            perm=perm,
        )

    def _describe(
        self, base: str, files: Mapping[str, FileTensor], settings: ModuleSettings
    ) -> _Packed:
        parts = {p: files[f"{base}.{p}"] for p in _PARTS if f"{base}.{p}" in files}
        for part in ("qzeros", "scales"):
            if part not in parts:
                raise ModelError(f"{self._folder}: {base}.{part} is missing")
        qweight, scales, bits = parts["qweight"], parts["scales"], settings.bits
        if len(qweight.shape) != 2 or len(scales.shape) != 2:
            raise ModelError(f"{self._folder}: {base}: qweight and scales must be matrices")
        rows = qweight.shape[1]
        columns = qweight.shape[0] * WORD_BITS // bits
        dtype = _SCALE_DTYPES.get(scales.dtype)
        if dtype is None:
            raise ModelError(f"{self._folder}: {scales.name} is {scales.stored}, expected F16")
        level = ScaleLevel(settings.group, dtype)
        groups = level.num_groups(columns)
        expected = {
            "qweight": ((columns * bits // WORD_BITS, rows), torch.int32),
            "qzeros": ((groups, rows * bits // WORD_BITS), torch.int32),
            "scales": ((groups, rows), scales.dtype),
            "g_idx": ((columns,), torch.int32),
        }
        for part, tensor in parts.items():
            shape, kind = expected[part]
            if tensor.shape != shape or tensor.dtype != kind or rows * bits % WORD_BITS:
                raise ModelError(
                    f"{self._folder}: {tensor.name} is {tensor.stored} {list(tensor.shape)}, but "
                    f"{bits} bits and group size {settings.group} need {kind} {list(shape)}",
                    hint="quantization_config and the tensors come from different models",
                )
        scheme = Scheme(bits, offset="none" if settings.sym else "zero", levels=(level,))
        nbytes = sum(tensor.nbytes for tensor in parts.values())
        info = TensorInfo(
            f"{base}.weight", (rows, columns), f"gptq int{bits}", torch.float32, scheme, nbytes
        )
        return _Packed(parts, info, scheme)

    def _permutation(
        self, name: str, index: Tensor | None, scheme: Scheme, columns: int
    ) -> Tensor | None:
        """Order of columns [K] that brings groups together, or None where they already are."""
        group = columns if scheme.group == WHOLE_ROW else scheme.group
        contiguous = torch.arange(columns, dtype=torch.int32) // group
        if index is None or torch.equal(index, contiguous):
            return None
        perm = torch.argsort(index, stable=True)
        if not torch.equal(index[perm], contiguous):
            raise ModelError(
                f"{self._folder}: {name}: g_idx does not make groups of {group} columns each",
                hint="only groups of equal size are supported",
            )
        return perm.to(torch.int32)

    def _zeros(self, name: str, words: Tensor, scheme: Scheme, rows: int) -> Tensor | None:
        """Zero points [N, G], or None for a symmetric tensor."""
        zeros = unpack(words, scheme.bits, rows).T.contiguous()
        if self._version == 1:
            wrapped = int((zeros == scheme.max_code).sum())
            if wrapped:
                raise ModelError(
                    f"{self._folder}: {name} stores {wrapped} zero points that overflow in gptq v1",
                    hint="readers disagree on such a file; quantize the model again as gptq_v2",
                )
            zeros = zeros + 1
        if scheme.offset == "zero":
            return zeros
        if bool((zeros != scheme.center).any()):
            raise ModelError(
                f"{self._folder}: {name}: sym is true, but not every zero point is {scheme.center}",
                hint="set sym to false in quantization_config",
            )
        return None


def _unpack_columns(
    words: Tensor, bits: int, rows: int, columns: int, perm: Tensor | None
) -> Tensor:
    """Words [K*bits/32, N] as codes [N, K] in stored order, rows in portions to save memory."""
    codes = torch.empty((rows, columns), dtype=torch.uint8)
    order = None if perm is None else perm.long()
    for start in range(0, rows, _UNPACK_ROWS):
        portion = slice(start, start + _UNPACK_ROWS)
        unpacked = unpack(words[:, portion].T, bits, columns)
        codes[portion] = unpacked if order is None else unpacked[:, order]
    return codes
