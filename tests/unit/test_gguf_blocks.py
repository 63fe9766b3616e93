"""Blocks of the one-level types: equal to gguf-py to the byte, in both directions."""

import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize
from hypothesis import given
from hypothesis import strategies as st

from quantkit.core.output import PlannedTensor
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.scheme import Scheme
from quantkit.errors import UsageError
from quantkit.formats import FORMATS
from quantkit.formats.gguf import side_schemes
from quantkit.formats.gguf.blocks import decode_blocks, encode_blocks
from quantkit.formats.gguf.types import BLOCKS, GgmlType, can_decode

KINDS = sorted(BLOCKS)
GGUF = FORMATS.get("gguf")


def sample(rows: int = 24, columns: int = 96) -> np.ndarray:
    generator = np.random.default_rng(0)
    weight = generator.standard_normal((rows, columns)).astype(np.float32)
    weight[3, :32] = 0.0  # a block of zeros has scale 0
    weight[5] *= 1e-6  # scales that are subnormal in float16
    return weight


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_decode_equals_gguf_py_and_encode_gives_its_bytes_back(kind: GgmlType) -> None:
    data = quantize(sample(), kind)
    value = decode_blocks(data, kind, (24, 96))
    assert value.scheme == Scheme.parse(kind.name)
    assert np.array_equal(value.decode().numpy(), dequantize(data, kind))
    assert encode_blocks(value, kind).tobytes() == data.tobytes()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_bytes_survive(kind: GgmlType, seed: int) -> None:
    """Every bit pattern, whatever wrote it, comes back as it was: nothing is lost in between."""
    size = GGML_QUANT_SIZES[kind][1]
    data = np.random.default_rng(seed).integers(0, 256, (2, 3 * size), np.uint8)
    value = decode_blocks(data, kind, (2, 96))
    assert encode_blocks(value, kind).tobytes() == data.tobytes()


def test_worked_examples() -> None:
    q4 = bytes.fromhex("003c") + bytes(17 * i for i in range(16))  # d = 1, codes 0..15 twice
    value = decode_blocks(np.frombuffer(q4, np.uint8), GgmlType.Q4_0, (1, 32))
    assert value.decode().tolist() == [[float(i - 8) for i in range(16)] * 2]
    q8 = bytes.fromhex("003c") + bytes([0x80, 0xFF, 0x00, 0x7F] * 8)
    value = decode_blocks(np.frombuffer(q8, np.uint8), GgmlType.Q8_0, (1, 32))
    assert value.codes[0, :4].tolist() == [0, 127, 128, 255]
    assert value.decode()[0, :4].tolist() == [-128.0, -1.0, 0.0, 127.0]


def test_stacked_tensors_keep_their_leading_dimensions() -> None:
    data = quantize(sample(24, 64), GgmlType.Q5_1)
    value = decode_blocks(data.reshape(-1), GgmlType.Q5_1, (2, 12, 64))
    assert value.shape == (2, 12, 64)
    assert encode_blocks(value, GgmlType.Q5_1).tobytes() == data.tobytes()


@pytest.mark.parametrize("kind", [*KINDS, GgmlType.F32, GgmlType.F16, GgmlType.BF16])
def test_nbytes_is_exact(kind: GgmlType) -> None:
    dtypes = {GgmlType.F32: torch.float32, GgmlType.F16: torch.float16}
    dtype = dtypes.get(kind, torch.bfloat16)
    planned = PlannedTensor("model.embed_tokens.weight", (24, 96), BLOCKS.get(kind), dtype)
    expected = quantize(sample(), kind).nbytes
    assert GGUF.nbytes(planned) == expected


def test_vectors_are_f32_whatever_was_planned() -> None:
    assert GGUF.nbytes(PlannedTensor("model.norm.weight", (96,), None, torch.bfloat16)) == 4 * 96


def test_admits_says_why_not() -> None:
    for kind, scheme in BLOCKS.items():
        assert GGUF.admits(scheme, (8, 64)) is None, kind.name
        assert "multiple of 32" in (GGUF.admits(scheme, (8, 48)) or "")
    for text in ("w4a16-g64", "w4a16-g32-asym", "w3a16-g32", "w8a8", "w4a16-g32-bf16"):
        assert "no type" in (GGUF.admits(Scheme.parse(text), (8, 64)) or ""), text
    with pytest.raises(UsageError, match="48 columns"):
        GGUF.nbytes(PlannedTensor("model.x.weight", (8, 48), BLOCKS[GgmlType.Q4_0], torch.float32))


def test_side_schemes_follow_llama_cpp() -> None:
    q4, q8 = BLOCKS[GgmlType.Q4_0], BLOCKS[GgmlType.Q8_0]
    assert side_schemes("q4_0", tied=True) == {"linear": q4, "embed": q8, "head": q8}
    assert side_schemes("Q4_0", tied=False) == {"linear": q4, "embed": q4, "head": q8}
    assert set(side_schemes("BF16", tied=True).values()) == {torch.bfloat16}
    with pytest.raises(UsageError, match="Q4_K"):
        side_schemes("Q4_K", tied=True)


def test_can_decode_every_type_that_gguf_py_can() -> None:
    unreadable = {kind.name for kind in GgmlType if not can_decode(kind)}
    assert unreadable == {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "Q1_0"}


def test_quantized_tensor_of_another_scheme_is_our_own_fault() -> None:
    value = decode_blocks(quantize(sample(), GgmlType.Q8_0), GgmlType.Q8_0, (24, 96))
    assert isinstance(value, QuantizedTensor)
    with pytest.raises(AssertionError):
        encode_blocks(value, GgmlType.Q4_0)
