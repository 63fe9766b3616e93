"""Numbers, sizes and models as people write them."""

import pytest

from quantkit.cli.types import COUNT, MODEL, parse_count, parse_size
from quantkit.errors import ModelError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("512", 512),
        ("32k", 32_000),
        ("32K", 32_768),
        ("1.5k", 1500),
        ("2M", 2 << 20),
        (" 7 ", 7),
        ("-1", -1),
    ],
)
def test_counts(text: str, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["", "k", "3x", "--1", "1.5", "0x10", "1e3", "3 k k"])
def test_not_counts(text: str) -> None:
    assert parse_count(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5GB", 5 * 10**9),
        ("12GiB", 12 << 30),
        ("500mb", 500 * 10**6),
        ("1048576", 1 << 20),
        ("9B", 9),
    ],
)
def test_sizes(text: str, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["GB", "5 G B", "5XB", "0.3"])
def test_not_sizes(text: str) -> None:
    assert parse_size(text) is None


def test_a_count_keeps_what_is_a_number_already() -> None:
    assert COUNT.convert(7, None, None) == 7


@pytest.mark.parametrize("ref", ["./modle", "/nowhere/x", "~/nowhere", "modle", "a/b/c", "x.gguf"])
def test_a_path_that_is_not_there(ref: str) -> None:
    with pytest.raises(ModelError, match="no such folder or file"):
        MODEL.convert(ref, None, None)


def test_what_may_be_a_hub_id_passes() -> None:
    assert MODEL.convert("org/name", None, None) == "org/name"
