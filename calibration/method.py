"""Method: how codes are chosen, as data that the pipeline reads; registry of all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from quantkit.calibration.stats import Stats
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.recipe import MethodEntry
from quantkit.core.registry import Registry, suggest
from quantkit.core.scheme import Scheme
from quantkit.errors import RecipeError, UsageError

Need = Literal["importance", "gram"]


class MethodOptions(BaseModel):
    """Base of every method's options; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, eq=False)
class Rounded:
    """What ``round`` returns.

    Attributes:
        tensor: the quantized weights.
        error: weighted relative error tr(E G E^T) / tr(W G W^T), with G the Gram matrix or its
            diagonal, whichever the method reads; plain relative error without statistics.
        notes: what the report shows beside it: damping, retries, choice.
    """

    tensor: QuantizedTensor
    error: float
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """One way to choose codes.

    Attributes:
        name: value of ``--method``.
        summary: one line for ``quantkit list methods``.
        options: pydantic model of its settings.
        needs: (options) -> statistics that it reads; empty means no calibration.
        round: (weight [N, K] float32, stats or None, scheme, options) -> Rounded; pure. Rows are
            independent, so linears that read one input may be rounded stacked.
    """

    name: str
    summary: str
    options: type[MethodOptions]
    needs: Callable[[Any], frozenset[Need]]
    round: Callable[[Tensor, Stats | None, Scheme, Any], Rounded]


def _creator(name: str) -> Callable[[], Method]:
    def create() -> Method:
        method = import_module(f"quantkit.calibration.methods.{name}").METHOD
        assert isinstance(method, Method)
        return method

    return create


METHODS: Registry[Method] = Registry("method", {name: _creator(name) for name in ("rtn", "gptq")})


@dataclass(frozen=True)
class Choice:
    """The method of a run with its options."""

    method: Method
    options: MethodOptions

    @property
    def needs(self) -> frozenset[Need]:
        """Statistics that it reads."""
        return self.method.needs(self.options)

    def round(self, weight: Tensor, stats: Stats | None, scheme: Scheme) -> Rounded:
        """See ``Method.round``."""
        return self.method.round(weight, stats, scheme, self.options)


def choose_method(entries: Sequence[MethodEntry]) -> Choice:
    """The method that a recipe names, with its options checked.

    Raises:
        UsageError: the method is not known, or several are given that cannot be combined.
        RecipeError: an option is not known or has a value that cannot be meant.
    """
    if len(entries) != 1:
        names = ", ".join(entry.name for entry in entries) or "none"
        raise UsageError(f"one method is needed, given: {names}", hint="give --method once")
    entry = entries[0]
    method = METHODS.get(entry.name)
    try:
        return Choice(method, method.options.model_validate(entry.options))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            hint = suggest(key, method.options.model_fields, "option")
            raise RecipeError(f"method {method.name} has no option {key!r}", hint=hint) from None
        raise RecipeError(f"method {method.name}: {key}: {first['msg']}") from None
