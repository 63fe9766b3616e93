"""Decoding, against the formula written out value by value."""

import pytest
import torch

from quantkit.core.grids import round_nearest
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.scheme import Scheme

SCHEMES = ["w4a16-g32", "w4a16-g32-asym", "q4_1", "w3a16-grow", "w8a16-g64-asym-bf16", "w2a16-g16"]


def make(text: str, rows: int = 5, columns: int = 64) -> QuantizedTensor:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    return round_nearest(weight, Scheme.parse(text))


def slow_decode(qt: QuantizedTensor) -> torch.Tensor:
    rows, columns = qt.shape
    group = columns if qt.scheme.group == -1 else qt.scheme.group
    out = torch.zeros(rows, columns, dtype=torch.float64)
    for n in range(rows):
        for k in range(columns):
            code, scale = int(qt.codes[n, k]), float(qt.scales[0][n, k // group])
            if qt.scheme.offset == "minimum":
                out[n, k] = scale * code + float(qt.minimums[0][n, k // group])
            elif qt.scheme.offset == "zero":
                out[n, k] = scale * (code - int(qt.zeros[n, k // group]))
            else:
                out[n, k] = scale * (code - 2 ** (qt.scheme.bits - 1))
    return out


@pytest.mark.parametrize("text", SCHEMES)
def test_decode_equals_the_formula(text: str) -> None:
    qt = make(text)
    want = slow_decode(qt)
    assert torch.equal(qt.decode(torch.float64), want)
    assert torch.allclose(qt.decode().double(), want, rtol=1e-6, atol=0)
    assert torch.equal(qt.decode(torch.bfloat16), qt.decode().bfloat16())


@pytest.mark.parametrize("text", SCHEMES)
def test_rows_are_rows(text: str) -> None:
    qt = make(text)
    assert torch.equal(qt.rows(slice(1, 3)).decode(), qt.decode()[1:3])
    index = torch.tensor([4, 0, 4])
    assert torch.equal(qt.rows(index).decode(), qt.decode()[index])


def test_a_permutation_moves_columns_back() -> None:
    qt = make("w4a16-g32")
    perm = torch.randperm(64, generator=torch.Generator().manual_seed(1)).to(torch.int32)
    moved = QuantizedTensor(qt.scheme, qt.codes, qt.scales, perm=perm)
    want = torch.empty(5, 64)
    for stored, feature in enumerate(perm.tolist()):
        want[:, feature] = qt.decode()[:, stored]
    assert torch.equal(moved.decode(), want)
    assert not moved.equal(qt)
    assert qt.equal(make("w4a16-g32"))


def test_a_short_last_group_decodes() -> None:
    scheme = Scheme.parse("w4a16-g32")
    codes = torch.full((2, 40), 9, dtype=torch.uint8)
    scales = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float16)
    decoded = QuantizedTensor(scheme, codes, (scales,)).decode()
    assert torch.equal(decoded[:, 0], torch.tensor([1.0, 3.0]))
    assert torch.equal(decoded[:, 39], torch.tensor([2.0, 4.0]))
