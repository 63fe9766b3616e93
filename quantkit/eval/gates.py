"""Gates: expressions such as `kl_mean > 0.05` that make a build fail when they hold."""

import difflib
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from quantkit.errors import CheckFailed, UsageError

# What can be gated; True where it takes a baseline.
METRICS: dict[str, bool] = {
    "nll": False,
    "nll_stderr": False,
    "ppl": False,
    "num_windows": False,
    "num_tokens": False,
    "num_scored": False,
    "bytes": False,
    "bits_per_weight": False,
    "seconds": False,
    "nll_baseline": True,
    "ppl_baseline": True,
    "ppl_ratio": True,
    "nll_delta": True,
    "nll_delta_stderr": True,
    "kl_mean": True,
    "kl_stderr": True,
    "kl_median": True,
    "kl_p99": True,
    "kl_max": True,
    "top1": True,
}

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_EXPRESSION = re.compile(r"\s*([A-Za-z_]\w*)\s*(>=|<=|==|>|<)\s*(\S+)\s*")


@dataclass(frozen=True)
class Gate:
    """A build fails when `metric operator bound` holds."""

    metric: str
    operator: str
    bound: float

    def __str__(self) -> str:
        return f"{self.metric} {self.operator} {self.bound!r}"

    def holds(self, value: float) -> bool:
        return _COMPARE[self.operator](value, self.bound)


@dataclass(frozen=True)
class Verdict:
    """What a gate said.

    Attributes:
        gate: the expression.
        metric: what it looks at.
        value: that metric's value.
        fired: whether the expression held, which fails the check.
    """

    gate: str
    metric: str
    value: float
    fired: bool


def parse_gates(expressions: Sequence[str], *, has_baseline: bool) -> tuple[Gate, ...]:
    """Read gates, before any work is done.

    Raises:
        UsageError: an expression that cannot be read, an unknown metric, or one that takes a
            baseline where none is given.
    """
    gates = tuple(parse_gate(expression) for expression in expressions)
    for gate in gates:
        if METRICS[gate.metric] and not has_baseline:
            raise UsageError(
                f"gate {str(gate)!r}: {gate.metric} is not computed without a baseline",
                hint="give the original model: --baseline MODEL",
            )
    return gates


def parse_gate(expression: str) -> Gate:
    """Read one gate: METRIC OPERATOR NUMBER.

    Raises:
        UsageError: it cannot be read, or names an unknown metric.
    """
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        raise UsageError(
            f"gate {expression!r} is not METRIC OPERATOR NUMBER",
            hint=f'write it like "kl_mean > 0.05"; operators: {" ".join(_COMPARE)}',
        )
    metric, compare, number = match.groups()
    if metric not in METRICS:
        near = difflib.get_close_matches(metric, METRICS, n=3, cutoff=0.5)
        raise UsageError(
            f"gate {expression!r}: unknown metric {metric!r}",
            hint=f"did you mean {' or '.join(near)}?" if near else f"one of: {', '.join(METRICS)}",
        )
    try:
        bound = float(number)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise UsageError(
            f"gate {expression!r}: {number!r} is not a finite number",
            hint='write it like "kl_mean > 0.05"',
        )
    return Gate(metric, compare, bound)


def judge(values: Mapping[str, float], gates: Sequence[Gate]) -> tuple[Verdict, ...]:
    """Apply gates to the metrics of one model.

    Raises:
        UsageError: a gate looks at a metric that this model does not have.
    """
    for gate in gates:
        if gate.metric not in values:
            raise UsageError(f"gate {str(gate)!r}: {gate.metric} was not computed")
    return tuple(
        Verdict(str(gate), gate.metric, values[gate.metric], gate.holds(values[gate.metric]))
        for gate in gates
    )


def check(verdicts: Sequence[Verdict], name: str = "") -> None:
    """Say no, once the report is written, if any gate fired.

    Raises:
        CheckFailed: it names every gate that fired, and `name` if one is given.
    """
    fired = [f"{v.gate} ({v.metric} is {v.value:.6g})" for v in verdicts if v.fired]
    if fired:
        prefix = f"{name}: " if name else ""
        raise CheckFailed(
            f"{prefix}--fail-if held: {'; '.join(fired)}",
            hint="the report holds the figures and the worst positions",
        )
