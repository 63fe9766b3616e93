"""Gates: what can be written, what it means, and what is refused before any work."""

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.errors import CheckFailed, UsageError
from quantkit.eval.gates import METRICS, check, judge, parse_gate, parse_gates

OPERATORS = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq,
}  # fmt: skip
numbers = st.floats(allow_nan=False, allow_infinity=False)
blanks = st.text(" \t", max_size=3)


@given(
    metric=st.sampled_from(sorted(METRICS)),
    symbol=st.sampled_from(sorted(OPERATORS)),
    bound=numbers,
    value=numbers,
    gaps=st.tuples(blanks, blanks, blanks, blanks),
)
def test_a_gate_means_what_it_says(
    metric: str, symbol: str, bound: float, value: float, gaps: tuple[str, str, str, str]
) -> None:
    a, b, c, d = gaps
    (gate,) = parse_gates([f"{a}{metric}{b}{symbol}{c}{bound!r}{d}"], has_baseline=True)
    (verdict,) = judge({metric: value}, [gate])
    assert verdict.fired == OPERATORS[symbol](value, bound)
    assert (verdict.metric, verdict.value) == (metric, value)
    assert parse_gate(str(gate)) == gate


@given(text=st.text() | st.builds("{}{}{}".format, st.text(), st.sampled_from(["> 1"]), st.text()))
def test_other_text_is_refused_by_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_gate(f"{text} metric")
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("expression", "message", "hint"),
    [
        ("kl_maen > 0.05", "unknown metric 'kl_maen'", "did you mean kl_mean"),
        ("loss > 1", "unknown metric 'loss'", "one of: nll"),
        ("kl_mean", "is not METRIC OPERATOR NUMBER", "kl_mean > 0.05"),
        ("kl_mean => 1", "is not METRIC OPERATOR NUMBER", ">= <= == > <"),
        ("kl_mean > 0.05 and ppl > 3", "is not METRIC OPERATOR NUMBER", ""),
        ("", "is not METRIC OPERATOR NUMBER", ""),
        ("ppl > ten", "'ten' is not a finite number", ""),
        ("ppl > nan", "'nan' is not a finite number", ""),
        ("ppl < inf", "'inf' is not a finite number", ""),
    ],
)
def test_mistakes_are_explained(expression: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_gate(expression)
    assert hint in str(caught.value.hint)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("metric", [name for name, takes in METRICS.items() if takes])
def test_a_baseline_is_asked_for(metric: str) -> None:
    with pytest.raises(UsageError, match=f"{metric} is not computed without a baseline"):
        parse_gates(["ppl > 5", f"{metric} > 1"], has_baseline=False)
    assert len(parse_gates(["ppl > 5", f"{metric} > 1"], has_baseline=True)) == 2


def test_a_figure_that_this_model_lacks() -> None:
    with pytest.raises(UsageError, match="bytes was not computed"):
        judge({"ppl": 3.0}, parse_gates(["bytes > 5"], has_baseline=False))


def test_check_names_every_gate_that_fired() -> None:
    gates = parse_gates(["kl_mean > 0.05", "ppl > 20", "top1 < 0.9"], has_baseline=True)
    verdicts = judge({"kl_mean": 0.0712, "ppl": 12.0, "top1": 0.85}, gates)
    assert [verdict.fired for verdict in verdicts] == [True, False, True]
    with pytest.raises(CheckFailed) as caught:
        check(verdicts, "model.gguf")
    assert caught.value.exit_code == 5
    assert caught.value.message == (
        "model.gguf: --fail-if held: kl_mean > 0.05 (kl_mean is 0.0712); top1 < 0.9 (top1 is 0.85)"
    )
    check(judge({"kl_mean": 0.05, "ppl": 12.0, "top1": 0.9}, gates))
