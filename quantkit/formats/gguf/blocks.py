"""Blocks of 32 of the types Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0, to and from codes and scales.

A block is: scale (f16), minimum (f16, types _1), the fifth bits of all codes (u32, types Q5), then
the low four bits: byte i holds value i below and value i + 16 above. Q8_0 is the scale and 32
signed bytes. Codes are unsigned here, as everywhere in quantkit.
"""

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGML_QUANT_SIZES

from quantkit.core.qtensor import QuantizedTensor
from quantkit.formats.gguf.types import BLOCKS, GgmlType

Bytes = npt.NDArray[np.uint8]

_BLOCK = 32


def decode_blocks(data: Bytes, kind: GgmlType, shape: tuple[int, ...]) -> QuantizedTensor:
    """Codes, scales and minimums of a tensor.

    Args:
        data: its bytes in the file.
        kind: one of ``BLOCKS``.
        shape: [..., N, K], K a multiple of 32.
    """
    scheme = BLOCKS[kind]
    blocks = data.reshape(-1, GGML_QUANT_SIZES[kind][1])
    grid = (*shape[:-1], shape[-1] // _BLOCK)

    def half(start: int) -> torch.Tensor:
        column = blocks[:, start : start + 2].copy().view("<f2")
        return torch.from_numpy(column.reshape(grid))

    at = 4 if scheme.offset == "minimum" else 2
    if kind is GgmlType.Q8_0:
        codes = blocks[:, at:] ^ 0x80  # two's complement plus 128
    else:
        codes = np.empty((len(blocks), _BLOCK), np.uint8)
        low = blocks[:, -_BLOCK // 2 :]
        codes[:, : _BLOCK // 2] = low & 15
        codes[:, _BLOCK // 2 :] = low >> 4
        if scheme.bits == 5:
            high = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
            codes |= high << 4
    return QuantizedTensor(
        scheme,
        torch.from_numpy(codes.reshape(shape)),
        (half(0),),
        minimums=(half(2),) if scheme.offset == "minimum" else (),
    )


def encode_blocks(value: QuantizedTensor, kind: GgmlType) -> Bytes:
    """The bytes of a tensor whose scheme is that of the type; the inverse of ``decode_blocks``."""
    scheme = BLOCKS[kind]
    assert value.scheme == scheme and value.perm is None
    codes = value.codes.numpy().reshape(-1, _BLOCK)
    parts = [_half_bytes(value.scales[0])]
    parts += [_half_bytes(minimum) for minimum in value.minimums]
    if kind is GgmlType.Q8_0:
        parts.append(codes ^ np.uint8(0x80))
    else:
        if scheme.bits == 5:
            parts.append(np.packbits(codes >> 4, axis=1, bitorder="little"))
        low = codes & np.uint8(15)
        parts.append(low[:, : _BLOCK // 2] | (low[:, _BLOCK // 2 :] << np.uint8(4)))
    return np.concatenate(parts, axis=1)


def _half_bytes(value: torch.Tensor) -> Bytes:
    return np.ascontiguousarray(value.numpy().astype("<f2").reshape(-1, 1)).view(np.uint8)
