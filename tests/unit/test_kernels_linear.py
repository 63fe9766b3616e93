"""The reference kernel against the decoded matrix, in one chunk and in many."""

import pytest
import torch

from quantkit.core.grids import round_nearest
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.scheme import Scheme
from quantkit.kernels import LinearProblem, PackedWeight, choose_linear, explain
from quantkit.kernels.reference import linear as reference
from quantkit.runtime.linear import prepare_linear

SCHEMES = ["w2a16-g32", "w3a16-g32-asym", "w4a16-g32", "q4_1", "w5a16-g32", "w8a16-grow"]


def make(text: str, permuted: bool = False) -> QuantizedTensor:
    generator = torch.Generator().manual_seed(0)
    qt = round_nearest(torch.randn(48, 96, generator=generator), Scheme.parse(text))
    if not permuted:
        return qt
    perm = torch.randperm(96, generator=generator).to(torch.int32)
    return QuantizedTensor(qt.scheme, qt.codes, qt.scales, qt.zeros, qt.minimums, perm)


@pytest.mark.parametrize("text", SCHEMES)
@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_equals_the_decoded_matrix(text, permuted, dtype, monkeypatch) -> None:
    qt = make(text, permuted)
    x = torch.randn(7, 96, generator=torch.Generator().manual_seed(1)).to(dtype)
    want = x.double() @ qt.decode(torch.float64).T
    bound = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    packed = PackedWeight.from_quantized(qt)
    for chunk in (1 << 22, 200):
        monkeypatch.setattr(reference, "_CHUNK_ELEMENTS", chunk)
        got = reference.run(x, packed)
        assert got.dtype == dtype
        assert (got.double() - want).abs().max() <= bound * want.abs().max()


@pytest.mark.parametrize("text", SCHEMES)
def test_packed_rows_are_the_same_rows(text) -> None:
    qt = make(text)
    packed = PackedWeight.from_quantized(qt)
    ids = torch.tensor([5, 0, 5, 47])
    assert packed.rows(ids).equal(qt.rows(ids))
    assert packed.shape == (48, 96)
    assert packed.nbytes < qt.codes.numel() + 2 * 4 * qt.scales[0].numel() + 1


def test_activations_are_rounded_where_the_scheme_says_so() -> None:
    qt = round_nearest(torch.randn(16, 32), Scheme.parse("w8a8"))
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(2))
    scale = x.abs().amax(-1, keepdim=True) / 127
    rounded = torch.round(x / scale).clamp(-127, 127) * scale
    got = reference.run(x, PackedWeight.from_quantized(qt))
    assert torch.allclose(got, rounded @ qt.decode().T, atol=1e-5)
    assert not torch.allclose(got, x @ qt.decode().T, atol=1e-5)


def test_a_linear_with_bias_and_its_choice() -> None:
    qt = make("w4a16-g32")
    bias = torch.randn(48)
    linear = prepare_linear(qt, bias, torch.float32, torch.device("cpu"))
    x = torch.randn(3, 96)
    assert torch.allclose(linear(x), x @ qt.decode().T + bias, atol=1e-5)
    dense = prepare_linear(qt.decode().bfloat16(), None, torch.float32, torch.device("cpu"))
    assert torch.allclose(dense(x), x @ qt.decode().bfloat16().float().T, atol=1e-5)
    ids = torch.tensor([3, 3, 1])
    assert torch.equal(linear.take(ids, torch.float32), qt.decode()[ids])
    problem = LinearProblem(qt.scheme, 48, 96, torch.float32, "cpu")
    assert choose_linear(problem).name == "reference.linear"
    assert explain(problem)[-1]["refused"] is None
