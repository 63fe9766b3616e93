"""What a client asks for (SamplingParams), its progress (Request) and what it gets (Output)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from quantkit.errors import QuantkitError, UsageError

FinishReason = Literal["stop", "length", "abort"]

MAX_LOGPROBS = 20
MAX_STOPS = 16
GREEDY_BELOW = 1e-5
"""Temperatures up to this one are greedy: the limit in closed form, with ties to the lowest id."""


class RequestError(UsageError):
    """A request that can never be answered as asked.

    Args:
        message: one line naming the field and the reason.
        field: the offending parameter, for machines; None when it is not one parameter.
    """

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.field = field


class GenerationError(QuantkitError):
    """A request that failed while it ran, for a reason inside the engine."""


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens and when to end. Checked once, here, and never changed.

    Attributes:
        max_tokens: most tokens to generate; None: as many as the context holds.
        min_tokens: end-of-text and stop conditions are held off until so many tokens are there.
        temperature: 0 is greedy.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches this.
        min_p: keep tokens at least this likely relative to the most likely one.
        presence_penalty: subtracted from the logit of every token already generated.
        frequency_penalty: subtracted once for each time the token was generated.
        repetition_penalty: divides positive and multiplies negative logits of every token of the
            prompt and the output (CTRL, Keskar et al., 2019); 0.01 to 100, 1 is off.
        logit_bias: token id -> value from -100 to 100 that is added to its logit. -100 bans the
            token, and where any token has 100, only such tokens are allowed.
        seed: makes the choice repeatable; None draws a fresh seed.
        stop: the text ends before the first of these strings.
        stop_token_ids: tokens that end the text, beside the model's own.
        ignore_eos: the model's own end-of-text tokens do not end it.
        logprobs: report the log-probability of each token and of this many most likely ones; None
            reports nothing.

    Raises:
        RequestError: a value is out of range or of the wrong type; names the field.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1)
        _integer("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _refuse("min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})")
        _number("temperature", self.temperature, 0.0)
        _integer("top_k", self.top_k, 0)
        _number("top_p", self.top_p, 0.0, 1.0, above=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        if self.seed is not None:
            _integer("seed", self.seed, -(2**63), 2**64 - 1)
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if not isinstance(self.ignore_eos, bool):
            raise _refuse("ignore_eos", self.ignore_eos, "true or false")
        object.__setattr__(self, "stop", _stops(self.stop))
        object.__setattr__(self, "stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature <= GREEDY_BELOW

    def check_vocab(self, vocab_size: int) -> None:
        """Check the token ids against a model.

        Raises:
            RequestError: an id is not below ``vocab_size``, or every token is banned.
        """
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token in ids:
                if token >= vocab_size:
                    raise RequestError(
                        f"{name}: token id {token} is outside the vocabulary of {vocab_size}",
                        field=name,
                    )
        if sum(value == -100 for value in self.logit_bias.values()) >= vocab_size:
            raise RequestError("logit_bias: every token is banned", field="logit_bias")


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probability of one generated token under the model's own distribution.

    Attributes:
        logprob: natural logarithm, before temperature, filters, penalties and bias. It is -inf
            for a token that the model gives no probability at all.
        top: the most likely tokens (id, logprob), likeliest first, ties by the lower id.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Output:
    """News of one request. The last one has a finish reason or an error.

    Attributes:
        text: what is new since the last output. Text that may still turn out to be part of a stop
            string or of a character is held back, so it can lag behind the tokens.
        token_ids: the new tokens.
        logprobs: one for each new token, when asked for.
        stop_reason: the stop string or the token id that ended the text.
        num_prompt_tokens: tokens of the prompt.
        num_cached_tokens: of these, how many came from the prefix cache.
        num_output_tokens: tokens generated so far, these included.
        error: one line saying why the request failed inside the engine.
    """

    request_id: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    error: str | None = None

    @property
    def is_last(self) -> bool:
        """Whether nothing follows."""
        return self.finish_reason is not None or self.error is not None


class Request:
    """One sequence on its way through the scheduler.

    Attributes:
        token_ids: prompt and output.
        num_computed: tokens whose keys and values are in the cache.
        table: block ids in order of position; grows at the end, emptied by preemption.
        num_cached: tokens of the prompt found in the prefix cache at first admission, None before.
        eos: ids that end the text.
        end: number of tokens, prompt included, at which it ends for length.
        num_registered, chain: blocks given to the prefix cache, and the content number of the last;
            set at admission.
    """

    def __init__(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        seed: int,
        eos: frozenset[int],
        end: int,
    ) -> None:
        self.id = request_id
        self.token_ids = list(prompt_ids)
        self.num_prompt = len(self.token_ids)
        self.params = params
        self.seed = seed
        self.eos = eos
        self.end = end
        self.num_computed = 0
        self.num_cached: int | None = None
        self.table: list[int] = []
        self.chain = 0
        self.num_registered = 0

    @property
    def num_tokens(self) -> int:
        """Tokens known so far."""
        return len(self.token_ids)

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt

    @property
    def output_ids(self) -> list[int]:
        """The tokens generated so far."""
        return self.token_ids[self.num_prompt :]

    def finish_reason(self) -> FinishReason | None:
        """Whether the newest token ends the text. A stop token wins over the length."""
        if self.token_ids[-1] in self.eos and self.num_output >= self.params.min_tokens:
            return "stop"
        return "length" if self.num_tokens >= self.end else None


def _refuse(name: str, value: object, want: str) -> RequestError:
    return RequestError(f"{name} is {value!r}, expected {want}", field=name)


def _integer(name: str, value: object, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refuse(name, value, "an integer")
    if value < low or (high is not None and value > high):
        raise _refuse(name, value, f"at least {low}" if high is None else f"{low} to {high}")


def _number(
    name: str, value: object, low: float, high: float = math.inf, *, above: bool = False
) -> None:
    """Check a finite number in [low, high], or in (low, high] with ``above``."""
    field_name = name.partition("[")[0]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestError(f"{name} is {value!r}, expected a finite number", field=field_name)
    if value < low or value > high or (above and value == low):
        least = f"above {low:g}" if above else f"at least {low:g}"
        want = least if high == math.inf else f"{least} and at most {high:g}"
        raise RequestError(f"{name} is {value!r}, expected {want}", field=field_name)


def _stops(stop: object) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else stop
    if not isinstance(strings, Sequence) or not all(isinstance(one, str) for one in strings):
        raise _refuse("stop", stop, "a string or a list of strings")
    if "" in strings:
        raise RequestError("stop holds an empty string, which would match at once", field="stop")
    if len(strings) > MAX_STOPS:
        raise RequestError(f"stop has {len(strings)} strings, at most {MAX_STOPS}", field="stop")
    return tuple(strings)


def _ids(name: str, ids: object) -> tuple[int, ...]:
    if isinstance(ids, str) or not isinstance(ids, Sequence):
        raise _refuse(name, ids, "a list of token ids")
    for token in ids:
        _integer(name, token, 0)
    return tuple(ids)


def _bias(bias: object) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise _refuse("logit_bias", bias, "a map from token id to number")
    for token, value in bias.items():
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise RequestError(f"logit_bias: {token!r} is not a token id", field="logit_bias")
        _number(f"logit_bias[{token}]", value, -100.0, 100.0)
    return {token: float(value) for token, value in bias.items()}
