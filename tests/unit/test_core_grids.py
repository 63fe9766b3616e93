"""Scale search: never worse than covering the range, near the optimum, safe at the edges."""

import pytest
import torch

from quantkit.core.grids import decode, encode, fit, grouped, round_nearest
from quantkit.core.scheme import Scheme

SCHEMES = ["w2a16-g32", "w3a16-g32", "w4a16-g32", "w4a16-g32-asym", "q4_1", "q8_0"]


def error(weight, scheme, importance, params):
    miss = decode(encode(weight, scheme, params), scheme, params) - weight
    return (miss.square() * importance).sum(-1)


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(40, 4, 32, generator=generator)
    weight[:, 0] *= 1 + 5 * torch.rand(32, generator=generator)
    return weight, torch.rand(4, 32, generator=generator).square() * 10


@pytest.mark.parametrize("text", SCHEMES)
def test_search_is_never_worse_group_by_group(text, data) -> None:
    weight, importance = data
    scheme = Scheme.parse(text)
    plain = error(weight, scheme, importance, fit(weight, scheme, None, "none"))
    found = error(weight, scheme, importance, fit(weight, scheme, importance, "weighted"))
    assert (found <= plain).all()
    assert found.sum() < (0.97 if scheme.bits == 8 else 0.9) * plain.sum()
    ones = torch.ones_like(importance)
    mse = error(weight, scheme, ones, fit(weight, scheme, None, "mse"))
    assert (mse <= error(weight, scheme, ones, fit(weight, scheme, None, "none"))).all()


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_symmetric_search_is_near_the_exhaustive_optimum(bits, data) -> None:
    weight, importance = data[0][:8], data[1]
    scheme = Scheme.parse(f"w{bits}a16-g32")
    found = error(weight, scheme, importance, fit(weight, scheme, importance, "weighted"))
    top = weight.abs().amax(-1) / (1 << (bits - 1))
    best = torch.full_like(found, float("inf"))
    for sign in (1.0, -1.0):
        for ratio in torch.linspace(0.2, 1.3, 2000):
            scale = (sign * ratio * top).half().float()
            candidate = type(fit(weight, scheme, None, "none"))(scale, None)
            best = torch.minimum(best, error(weight, scheme, importance, candidate))
    assert found.sum() <= 1.03 * best.sum()


@pytest.mark.parametrize("text", SCHEMES)
def test_codes_are_the_nearest_ones(text, data) -> None:
    weight = data[0][:4]
    scheme = Scheme.parse(text)
    params = fit(weight, scheme, None, "none")
    every = torch.arange(scheme.max_code + 1).float()
    values = torch.stack([decode(torch.full_like(weight, c), scheme, params) for c in every])
    nearest = (values - weight).abs().amin(0)
    chosen = (decode(encode(weight, scheme, params), scheme, params) - weight).abs()
    assert torch.allclose(chosen, nearest, atol=1e-6)


@pytest.mark.parametrize("text", SCHEMES)
@pytest.mark.parametrize("search", ["none", "mse", "weighted"])
def test_edges_stay_finite(text, search) -> None:
    scheme = Scheme.parse(text)
    weight = torch.zeros(6, 32)
    weight[1] = 1e-9  # the scale underflows float16
    weight[2] = 3.0  # constant
    weight[3, 5] = 7e4
    weight[4] = -1e-3
    importance = torch.ones(32)
    importance[:16] = 0.0
    qt = round_nearest(weight, scheme, importance, search)
    assert torch.isfinite(qt.decode()).all()
    assert (qt.decode()[0] == 0).all()
    assert (qt.decode()[2] - 3.0).abs().max() < 3.0 / scheme.max_code + 1e-3


def test_zero_importance_everywhere_is_harmless(data) -> None:
    scheme = Scheme.parse("w4a16-g32")
    params = fit(data[0], scheme, torch.zeros(4, 32), "weighted")
    assert torch.isfinite(params.scale).all()


def test_an_overflowing_scale_is_reported_not_hidden() -> None:
    qt = round_nearest(torch.full((1, 32), 1e7), Scheme.parse("w4a16-g32"), None, "mse")
    assert not torch.isfinite(qt.scales[0]).all()


def test_rows_are_independent() -> None:
    weight = torch.randn(300, 64, generator=torch.Generator().manual_seed(3))
    scheme = Scheme.parse("w4a16-g32")
    whole = round_nearest(weight, scheme, torch.ones(64), "weighted")
    part = round_nearest(weight[100:200], scheme, torch.ones(64), "weighted")
    assert part.equal(whole.rows(slice(100, 200)))
    assert grouped(weight, -1).shape == (300, 1, 64)
