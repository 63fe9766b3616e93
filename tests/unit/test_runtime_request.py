"""SamplingParams refuse what cannot be meant, name the field, and never need torch."""

import math
import subprocess
import sys
from typing import Any

import pytest

from quantkit.errors import UsageError
from quantkit.runtime.request import Output, Request, RequestError, SamplingParams

REFUSED: list[tuple[str, Any]] = [
    ("max_tokens", 0),
    ("max_tokens", -5),
    ("max_tokens", 1e30),
    ("max_tokens", "ten"),
    ("max_tokens", True),
    ("min_tokens", -1),
    ("temperature", -1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", "hot"),
    ("temperature", None),
    ("top_k", -1),
    ("top_k", 1.5),
    ("top_p", 0),
    ("top_p", 1.0001),
    ("top_p", math.nan),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1.0),
    ("logit_bias", [1]),
    ("logit_bias", {"7": 1.0}),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {3: 1000}),
    ("logit_bias", {3: math.nan}),
    ("logit_bias", {3: None}),
    ("seed", 1.0),
    ("seed", 2**64),
    ("stop", ""),
    ("stop", ["x", ""]),
    ("stop", [1]),
    ("stop", 5),
    ("stop", [str(i) for i in range(17)]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", "12"),
    ("ignore_eos", 1),
    ("logprobs", 21),
    ("logprobs", -1),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_refused(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.field == name
    assert caught.value.message.startswith(name)
    assert "\n" not in caught.value.message
    assert isinstance(caught.value, UsageError)


def test_more_tokens_demanded_than_allowed() -> None:
    with pytest.raises(RequestError, match="min_tokens is 5, expected at most max_tokens"):
        SamplingParams(max_tokens=4, min_tokens=5)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"temperature": 0, "top_p": 1e-9, "top_k": 10**9, "min_p": 1},
        {"temperature": 1e30, "seed": -1, "logprobs": 0},
        {"stop": "end", "stop_token_ids": [3], "logit_bias": {0: -100, 5: 100}},
        {"stop": ["x" * 10_000], "max_tokens": 1, "min_tokens": 1},
    ],
)
def test_accepted(values: dict[str, Any]) -> None:
    SamplingParams(**values)


def test_values_are_taken_over_once() -> None:
    bias, stops = {1: 2}, ["a"]
    params = SamplingParams(logit_bias=bias, stop=stops)
    bias[1], stops[0] = 99, ""
    assert params.logit_bias == {1: 2.0}
    assert params.stop == ("a",)
    assert SamplingParams(stop="ab").stop == ("ab",)


def test_token_ids_are_checked_against_a_vocabulary() -> None:
    SamplingParams(logit_bias={511: 1.0}, stop_token_ids=(511,)).check_vocab(512)
    with pytest.raises(RequestError, match="logit_bias: token id 512 is outside"):
        SamplingParams(logit_bias={512: 1.0}).check_vocab(512)
    with pytest.raises(RequestError, match="stop_token_ids: token id 600"):
        SamplingParams(stop_token_ids=(600,)).check_vocab(512)
    with pytest.raises(RequestError, match="every token is banned"):
        SamplingParams(logit_bias={0: -100, 1: -100}).check_vocab(2)


def test_finish_reason() -> None:
    params = SamplingParams(max_tokens=3, min_tokens=2)
    request = Request("r", [5, 6], params, seed=0, eos=frozenset({9}), end=5)
    reasons = []
    for token in (9, 9, 9):
        request.token_ids.append(token)
        reasons.append(request.finish_reason())
    assert reasons == [None, "stop", "stop"]  # a stop token wins over the length
    request.token_ids[-1] = 1
    assert request.finish_reason() == "length"
    assert request.output_ids == [9, 9, 1]


def test_the_last_output() -> None:
    assert not Output("r", text="x").is_last
    assert Output("r", finish_reason="stop").is_last
    assert Output("r", error="no").is_last


def test_no_torch() -> None:
    code = (
        "import quantkit.runtime.request, quantkit.runtime.blocks, quantkit.runtime.scheduler,"
        "quantkit.runtime.step, quantkit.runtime.text.stops, quantkit.runtime.text.detokenize,"
        "quantkit.runtime.delivery, sys; from quantkit.runtime import SamplingParams;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names() -> None:
    import quantkit.runtime as runtime

    for name in runtime.__all__:
        assert getattr(runtime, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        runtime.nothing  # noqa: B018
