"""The bit stream of packed codes: worked examples, a bit-by-bit reference, and refusals."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantkit.core.packing import pack, packed_words, unpack


def slow_pack(codes: list[int], bits: int) -> list[int]:
    """Words of the stream, written bit by bit."""
    stream = [(code >> i) & 1 for code in codes for i in range(bits)]
    stream += [0] * (-len(stream) % 32)
    return [
        sum(bit << i for i, bit in enumerate(stream[start : start + 32]))
        for start in range(0, len(stream), 32)
    ]


def words(tensor: torch.Tensor) -> list[int]:
    return [int(value) & 0xFFFFFFFF for value in tensor]


@pytest.mark.parametrize(
    ("bits", "want"),
    [
        (2, [0xE4E4E4E4, 0xE4E4E4E4]),
        (3, [0x88FAC688, 0xC688FAC6, 0xFAC688FA]),
        (4, [0x76543210, 0xFEDCBA98, 0x76543210, 0xFEDCBA98]),
        (8, [0x03020100, 0x07060504]),
    ],
)
def test_worked_examples(bits: int, want: list[int]) -> None:
    codes = torch.arange(32) % (1 << bits)
    assert words(pack(codes, bits))[: len(want)] == want


@given(
    bits=st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8]),
    length=st.integers(1, 100),
    rows=st.integers(1, 3),
    seed=st.integers(0, 1 << 16),
)
def test_equals_the_bit_by_bit_stream(bits: int, length: int, rows: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 1 << bits, (rows, length), generator=generator)
    packed = pack(codes, bits)
    assert packed.shape == (rows, packed_words(length, bits))
    assert [words(row) for row in packed] == [slow_pack(row.tolist(), bits) for row in codes]
    assert torch.equal(unpack(packed, bits, length), codes.to(torch.uint8))


@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("position", range(8))
def test_a_code_out_of_range_never_spills(bits: int, position: int) -> None:
    for bad in (-1, 1 << bits):
        codes = torch.zeros(8, dtype=torch.int64)
        codes[position] = bad
        with pytest.raises(ValueError, match="outside"):
            pack(codes, bits)


def test_floats_and_wrong_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="integers"):
        pack(torch.zeros(8), 4)
    with pytest.raises(ValueError, match="words"):
        unpack(torch.zeros(2, dtype=torch.int32), 4, 17)


def test_leading_dimensions_and_odd_sizes() -> None:
    codes = torch.randint(0, 16, (4, 30, 33), generator=torch.Generator().manual_seed(0))
    packed = pack(codes, 4)
    assert torch.equal(unpack(packed, 4, 33), codes.to(torch.uint8))
    assert all(torch.equal(packed[i], pack(codes[i], 4)) for i in range(4))
