"""Schemes print and parse, and count their bits exactly."""

import pytest

from quantkit.core.scheme import WHOLE_ROW, ActScheme, ScaleLevel, Scheme, has_group
from quantkit.errors import UsageError


@pytest.mark.parametrize(
    "text",
    [
        "w4a16-g64",
        "w4a16-g128-asym",
        "w3a16-grow",
        "w8a8",
        "w8a8-static",
        "w4a16-g32-min",
        "w4a16-g32-asym-bf16",
        "w2a16-g16-f32",
    ],
)
def test_prints_what_it_parses(text: str) -> None:
    assert str(Scheme.parse(text)) == text


@pytest.mark.parametrize(
    ("alias", "text"),
    [
        ("q4_0", "w4a16-g32"),
        ("Q4_1", "w4a16-g32-min"),
        ("q5_0", "w5a16-g32"),
        ("q8_0", "w8a16-g32"),
    ],
)
def test_one_level_gguf_types_are_schemes(alias: str, text: str) -> None:
    assert Scheme.parse(alias) == Scheme.parse(text)


def test_defaults() -> None:
    assert Scheme.parse("w4a16").group == 128
    assert Scheme.parse("w4a16", default_group=32).group == 32
    assert Scheme.parse("w8a8").levels == (ScaleLevel(WHOLE_ROW),)
    assert Scheme.parse("w8a8").act == ActScheme(8, "token", True)
    assert Scheme.parse("W4A16-G64") == Scheme(4, levels=(ScaleLevel(64),))


@pytest.mark.parametrize("text", ["", "w7a16", "w4", "w4a4", "w4a16-g", "w4a16-g64-sym", "int4"])
def test_nonsense_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Scheme.parse(text)
    assert caught.value.hint


def test_has_group() -> None:
    assert not has_group("w4a16")
    assert all(has_group(text) for text in ("w4a16-g64", "q4_0", "w8a8", "w4a16-grow"))


@pytest.mark.parametrize(
    ("text", "columns", "bits"),
    [
        ("w4a16-g64", 128, 4 + 16 / 64),
        ("w4a16-g64-asym", 128, 4 + 20 / 64),
        ("q4_1", 64, 5.0),
        ("q8_0", 64, 8.5),
        ("w8a8", 128, 8 + 16 / 128),
        ("w4a16-g128", 192, 4 + 2 * 16 / 192),
    ],
)
def test_bits_per_weight(text: str, columns: int, bits: float) -> None:
    assert Scheme.parse(text).bits_per_weight(7, columns) == pytest.approx(bits, abs=1e-12)
