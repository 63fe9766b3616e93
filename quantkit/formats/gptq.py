"""The ``gptq`` container: packed linears as GPTQModel, transformers and vLLM read them.

For a linear NAME with N outputs, K inputs, b bits and G groups, in place of NAME.weight:
NAME.qweight int32 [K*b/32, N], each column one bit stream over K; NAME.qzeros int32 [G, N*b/32],
each row one bit stream over N; NAME.scales [G, N]; NAME.g_idx int32 [K], the group of every column.
Value: scales[g, n] * (code[k, n] - zero[g, n]) with g = g_idx[k].
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quantkit.core.output import OutputPlan, PlannedTensor
from quantkit.core.packing import pack, packed_words
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.scheme import WHOLE_ROW, Scheme
from quantkit.errors import ModelError
from quantkit.formats.codec import Decoder
from quantkit.formats.folder_format import FolderFormat
from quantkit.formats.gptq_config import (
    BITS,
    GptqSettings,
    build_block,
    parse_settings,
    settings_for,
)
from quantkit.formats.gptq_read import GptqDecoder
from quantkit.formats.json_file import QUANTIZE_CONFIG
from quantkit.formats.safetensors_io import Entry
from quantkit.formats.weights import Weights

MULTIPLE = 32
"""Readers' kernels want inputs and outputs in multiples of this, more than the words alone do."""
_PACK_ROWS = 1024


class GptqCodec:
    """Spelling of both versions; the plan decides which is written, the block which is read."""

    name = "gptq"
    quant_method: str | None = "gptq"
    settings_file: str | None = QUANTIZE_CONFIG

    def admits(self, scheme: Scheme, shape: tuple[int, ...]) -> str | None:
        if scheme.bits not in BITS:
            return f"gptq holds 2, 3, 4 or 8 bits, not {scheme.bits}"
        if scheme.offset == "minimum" or scheme.table != "uniform":
            return f"gptq holds integer zero points only, not {scheme}"
        if len(scheme.levels) != 1 or scheme.levels[0].dtype != "f16":
            return f"gptq holds one level of f16 scales, not {scheme}"
        if scheme.act is not None or scheme.outliers is not None:
            return f"gptq holds weight-only schemes without outlier columns, not {scheme}"
        if len(shape) != 2:
            return f"gptq holds matrices, not {len(shape)} dimensions"
        for axis, size in zip(("out_features", "in_features"), shape, strict=True):
            if size % MULTIPLE:
                return f"{axis} {size} is not a multiple of {MULTIPLE}"
        if not scheme.divides(shape[1]):
            return f"group size {scheme.group} does not divide in_features {shape[1]}"
        return None

    def entries(self, tensor: PlannedTensor) -> tuple[Entry, ...]:
        assert tensor.scheme is not None
        (rows, columns), bits = tensor.shape, tensor.scheme.bits
        groups = tensor.scheme.levels[0].num_groups(columns)
        base = tensor.name.removesuffix(".weight")
        return (
            Entry(f"{base}.qweight", torch.int32, (packed_words(columns, bits), rows)),
            Entry(f"{base}.qzeros", torch.int32, (groups, packed_words(rows, bits))),
            Entry(f"{base}.scales", torch.float16, (groups, rows)),
            Entry(f"{base}.g_idx", torch.int32, (columns,)),
        )

    def encoder(self, plan: OutputPlan) -> "GptqEncoder":
        return GptqEncoder(plan, settings_for(plan))

    def decoder(self, weights: Weights, block: Mapping[str, Any], folder: Path) -> Decoder:
        return GptqDecoder(weights, parse_settings(block, folder), folder)


class GptqEncoder:
    """Spells one output and remembers whether any tensor came with permuted columns."""

    def __init__(self, plan: OutputPlan, settings: GptqSettings) -> None:
        self._plan = plan
        self._settings = settings
        self._permuted = False

    def encode(self, name: str, value: QuantizedTensor) -> dict[str, Tensor]:
        """See ``Encoder.encode``.

        A permutation is stored as the group of every column, so the order of columns inside a group
        is not kept; it does not change any weight.
        """
        base = name.removesuffix(".weight")
        scales = value.scales[0]
        if not bool(torch.isfinite(scales).all()):
            raise ModelError(
                f"{name}: a scale does not fit float16",
                hint="quantize this tensor in smaller groups, or keep it",
            )
        columns = value.shape[1]
        group = columns if value.scheme.group == WHOLE_ROW else value.scheme.group
        index = torch.arange(columns, dtype=torch.int32) // group
        codes = value.codes
        if value.perm is not None:
            order = torch.argsort(value.perm.long())
            codes, index = codes[:, order], index[order.cpu()]
            self._permuted = True
        return {
            f"{base}.qweight": _pack_columns(codes, value.scheme.bits),
            f"{base}.qzeros": pack(self._stored_zeros(name, value).T, value.scheme.bits),
            f"{base}.scales": scales.T,
            f"{base}.g_idx": index,
        }

    def quantization_config(self) -> dict[str, Any]:
        return build_block(self._plan, self._settings, desc_act=self._permuted)

    def _stored_zeros(self, name: str, value: QuantizedTensor) -> Tensor:
        """Zero points [N, G] as this version stores them."""
        zeros = value.zeros
        if zeros is None:
            zeros = torch.full_like(value.scales[0], value.scheme.center, dtype=torch.uint8)
        if int(zeros.max()) > value.scheme.max_code:
            raise ModelError(f"{name}: a zero point does not fit {value.scheme.bits} bits")
        if self._settings.version == 2:
            return zeros
        assert int(zeros.min()) > 0, f"{name}: version 1 cannot hold zero point 0"
        return zeros - 1


def _pack_columns(codes: Tensor, bits: int) -> Tensor:
    """Codes [N, K] as words [K*bits/32, N]; in portions, since packing takes 64 bits a code."""
    rows, columns = codes.shape
    words = torch.empty((packed_words(columns, bits), rows), dtype=torch.int32)
    for start in range(0, rows, _PACK_ROWS):
        portion = slice(start, start + _PACK_ROWS)
        words[:, portion] = pack(codes[portion].cpu(), bits).T
    return words


FORMAT = FolderFormat(GptqCodec())
