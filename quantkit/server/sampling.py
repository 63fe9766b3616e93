"""From a request body to SamplingParams: the model's defaults, derived seeds, lengths that fit."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from quantkit.errors import ModelError
from quantkit.runtime.request import RequestError, SamplingParams
from quantkit.server.errors import ApiError
from quantkit.server.schemas import ChatBody, CompletionBody, GenerationBody

COMPLETION_MAX_TOKENS = 16
_SEED_STEP = 0x9E3779B97F4A7C15  # odd, so that the seeds of 2^64 choices differ


@dataclass(frozen=True)
class SamplingDefaults:
    """What a request gets that does not say otherwise: generation_config.json, as vLLM reads it."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def from_companions(cls, files: Mapping[str, bytes]) -> "SamplingDefaults":
        """Read them from the files that travel with a model.

        Raises:
            ModelError: generation_config.json is damaged or holds a value out of range.
        """
        if "generation_config.json" not in files:
            return cls()
        try:
            config = json.loads(files["generation_config.json"].decode("utf-8-sig"))
        except ValueError as error:
            raise ModelError(f"generation_config.json is not valid JSON: {error}") from None
        known = {name: config[name] for name in asdict(cls()) if config.get(name) is not None}
        defaults = replace(cls(), **known)
        try:
            SamplingParams(**asdict(defaults))
        except RequestError as error:
            raise ModelError(f"generation_config.json: {error}") from None
        return defaults


def sampling_params(
    body: GenerationBody, defaults: SamplingDefaults, choice: int, room: int
) -> SamplingParams:
    """Parameters of one sequence.

    Args:
        choice: index among the ``n`` answers to one prompt; each has a seed of its own.
        room: tokens that fit behind the prompt; a longer ``max_tokens`` is cut to it.

    Raises:
        RequestError: a value is out of range; names the field.
    """
    wanted = _max_tokens(body)
    min_tokens = body.min_tokens or 0
    if wanted is not None and min_tokens > wanted:
        raise ApiError(
            400,
            f"min_tokens: {min_tokens} is more than max_tokens ({wanted})",
            param="min_tokens",
            code="invalid_value",
        )
    top_k = defaults.top_k if body.top_k is None else max(body.top_k, 0)
    return SamplingParams(
        max_tokens=room if wanted is None else min(wanted, room),
        min_tokens=min(min_tokens, room),
        temperature=_or(body.temperature, defaults.temperature),
        top_k=top_k,
        top_p=_or(body.top_p, defaults.top_p),
        min_p=_or(body.min_p, defaults.min_p),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        repetition_penalty=_or(body.repetition_penalty, defaults.repetition_penalty),
        logit_bias=body.logit_bias or {},
        seed=_seed(body.seed, choice),
        stop=body.stop or (),
        stop_token_ids=body.stop_token_ids or (),
        ignore_eos=bool(body.ignore_eos),
        logprobs=_logprobs(body),
    )


def _max_tokens(body: GenerationBody) -> int | None:
    """None means all that fits: the default of chat. Plain completions have OpenAI's 16."""
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        return body.max_completion_tokens
    if body.max_tokens is None and isinstance(body, CompletionBody):
        return max(COMPLETION_MAX_TOKENS, body.min_tokens or 0)
    return body.max_tokens


def _logprobs(body: GenerationBody) -> int | None:
    if isinstance(body, ChatBody):
        return (body.top_logprobs or 0) if body.logprobs else None
    assert isinstance(body, CompletionBody)
    return body.logprobs


def _seed(seed: int | None, choice: int) -> int | None:
    """The first choice has the seed itself, so it equals the only answer of n=1."""
    if seed is None or choice == 0:
        return seed
    return (seed + choice * _SEED_STEP) % 2**63


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
