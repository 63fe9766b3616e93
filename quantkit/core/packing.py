"""Codes as one least-significant-bit-first stream of 32-bit words, and back.

The same stream serves GPTQ's qweight (along K) and qzeros (along N) and compressed-tensors. Code i
of b bits occupies stream bits i*b to i*b+b-1, so codes of 3, 5 or 6 bits straddle words.
"""

import math

import torch
from torch import Tensor

WORD_BITS = 32


def packed_words(count: int, bits: int) -> int:
    """Words that ``count`` codes of ``bits`` bits take; the last word may be partly used."""
    return -(-count * bits // WORD_BITS)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes along the last axis.

    Args:
        codes: integer tensor [..., L] with values 0 to 2**bits - 1.
        bits: 1 to 8.

    Returns:
        int32 [..., ceil(L * bits / 32)]; unused bits of the last word are zero.

    Raises:
        ValueError: a code does not fit; it never spills into its neighbors.
    """
    if codes.is_floating_point() or codes.dtype == torch.bool:
        raise ValueError(f"codes must be integers, not {codes.dtype}")
    if codes.numel() and (int(codes.min()) < 0 or int(codes.max()) >> bits):
        raise ValueError(f"a code lies outside 0..{(1 << bits) - 1}")
    length = codes.shape[-1]
    if 8 % bits == 0:
        return _pack_bytes(codes.to(torch.uint8).contiguous(), bits)
    period, words = _period(bits)
    padded = -(-length // period) * period
    wide = torch.nn.functional.pad(codes.to(torch.int64), (0, padded - length))
    wide = wide.reshape(*wide.shape[:-1], -1, period)
    out = wide.new_zeros((*wide.shape[:-1], words))
    for i in range(period):
        word, shift = divmod(i * bits, WORD_BITS)
        out[..., word] |= (wide[..., i] << shift) & 0xFFFFFFFF
        if shift + bits > WORD_BITS:
            out[..., word + 1] |= wide[..., i] >> (WORD_BITS - shift)
    out = out.flatten(-2)[..., : packed_words(length, bits)]
    return torch.where(out >= 1 << 31, out - (1 << 32), out).to(torch.int32)


def unpack(words: Tensor, bits: int, length: int) -> Tensor:
    """Inverse of ``pack``.

    Args:
        words: int32 [..., ceil(length * bits / 32)].
        bits: 1 to 8.
        length: number of codes.

    Returns:
        uint8 [..., length].

    Raises:
        ValueError: the number of words does not fit ``length``.
    """
    if words.shape[-1] != packed_words(length, bits):
        raise ValueError(
            f"{length} codes of {bits} bits take {packed_words(length, bits)} words, "
            f"not {words.shape[-1]}"
        )
    if 8 % bits == 0:
        return _unpack_bytes(words, bits)[..., :length]
    period, per = _period(bits)
    groups = -(-words.shape[-1] // per)
    wide = torch.nn.functional.pad(words.to(torch.int64), (0, groups * per - words.shape[-1]))
    wide = (wide & 0xFFFFFFFF).reshape(*wide.shape[:-1], groups, per)
    mask = (1 << bits) - 1
    out = torch.empty((*wide.shape[:-1], period), dtype=torch.uint8, device=words.device)
    for i in range(period):
        word, shift = divmod(i * bits, WORD_BITS)
        value = wide[..., word] >> shift
        if shift + bits > WORD_BITS:
            value = value | (wide[..., word + 1] << (WORD_BITS - shift))
        out[..., i] = (value & mask).to(torch.uint8)
    return out.flatten(-2)[..., :length]


def _pack_bytes(codes: Tensor, bits: int) -> Tensor:
    """Codes that never straddle bytes: the stream is the little-endian bytes of the words."""
    per_word = WORD_BITS // bits
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % per_word))
    parts = padded.reshape(*padded.shape[:-1], -1, 8 // bits)
    out: Tensor = parts[..., 0].clone()
    for i in range(1, 8 // bits):
        out |= parts[..., i] << (i * bits)
    words: Tensor = out.view(torch.int32)
    return words


def _unpack_bytes(words: Tensor, bits: int) -> Tensor:
    """Inverse of ``_pack_bytes``, with the padding of the last word."""
    data = words.contiguous().view(torch.uint8)
    if bits == 8:
        return data
    mask = (1 << bits) - 1
    return torch.stack([(data >> i) & mask for i in range(0, 8, bits)], -1).flatten(-2)


def _period(bits: int) -> tuple[int, int]:
    """Smallest run of codes that ends on a word boundary: (codes, words)."""
    total = math.lcm(bits, WORD_BITS)
    return total // bits, total // WORD_BITS
