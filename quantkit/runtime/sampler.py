"""The one definition of the distribution that tokens are drawn from, and the draw.

Order: repetition, frequency and presence penalties; logit bias; bans; temperature; top-k; top-p
over what top-k left; min-p. Ties are broken by the lower token id everywhere.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quantkit.runtime.request import GenerationError, Request, SamplingParams, TokenLogprob
from quantkit.runtime.rng import Purpose, uniform

_FIRST_TRY = 1024
"""Candidates in which a nucleus is looked for before the whole vocabulary is sorted."""


@dataclass(frozen=True)
class Row:
    """What one row of logits is for.

    Attributes:
        params: how to choose.
        seed: of the random numbers.
        token_ids: the sequence before the token that is chosen.
        num_prompt: how many of these are the prompt.
        banned: tokens that cannot be chosen here.
    """

    params: SamplingParams
    seed: int
    token_ids: Sequence[int]
    num_prompt: int
    banned: frozenset[int] = frozenset()

    @classmethod
    def of(cls, request: Request) -> "Row":
        """The row that gives a request its next token."""
        early = request.num_output < request.params.min_tokens
        banned = request.eos if early else frozenset()
        return cls(request.params, request.seed, request.token_ids, request.num_prompt, banned)


@dataclass(frozen=True)
class Choice:
    """A chosen token, and its log-probability where that was asked for."""

    token_id: int
    logprob: TokenLogprob | None = None


def choose(logits: Tensor, rows: Sequence[Row]) -> list[Choice | GenerationError]:
    """Choose one token for each row of logits [R, V].

    A row without a single finite best logit gives an error in its place; other rows are not touched
    by it, nor by anything else about their neighbors.
    """
    adjusted = adjust(logits, rows)
    best = adjusted.argmax(-1)
    tops = adjusted.gather(-1, best[:, None])[:, 0].tolist()
    tokens = best.tolist()
    chosen: list[Choice | GenerationError] = []
    for i, row in enumerate(rows):
        if not math.isfinite(tops[i]):
            chosen.append(GenerationError(f"the model's best logit is {tops[i]}"))
            continue
        token = tokens[i]
        if not row.params.is_greedy:
            token = draw(_filtered(adjusted[i], row.params), row, Purpose.SAMPLE)
        chosen.append(Choice(token, _logprob(logits[i], token, row.params.logprobs)))
    return chosen


def process(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Log-probabilities [R, V] of the distributions that tokens are drawn from.

    A greedy row has all its probability on the most likely token.
    """
    adjusted = adjust(logits, rows)
    out = torch.full_like(adjusted, -math.inf)
    for i, row in enumerate(rows):
        if row.params.is_greedy:
            out[i, adjusted[i].argmax()] = 0.0
        else:
            out[i] = torch.log_softmax(_filtered(adjusted[i], row.params), -1)
    return out


def adjust(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Logits [R, V] after penalties, bias and bans; the input itself where no row has any."""
    touched = [i for i, row in enumerate(rows) if _is_adjusted(row)]
    if not touched:
        return logits
    logits = logits.clone()
    for i in touched:
        _penalize(logits[i], rows[i])
        _bias(logits[i], rows[i])
    return logits


def draw(x: Tensor, row: Row, purpose: Purpose) -> int:
    """Draw from softmax(x [V]) by the inverse of its distribution function in order of token id.

    Tokens at -inf are never drawn. Sums are in float64.
    """
    ids = x.isfinite().nonzero()[:, 0]
    cumulated = torch.softmax(x[ids].double(), -1).cumsum(-1)
    u = uniform(row.seed, len(row.token_ids), purpose)
    at = torch.searchsorted(cumulated, cumulated[-1] * u, right=True)
    return int(ids[at.clamp(max=len(ids) - 1)])


def largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of x [V], in falling order, ties by the lower index: values [k], ids [k]."""
    if k >= len(x):
        values, ids = torch.sort(x, descending=True, stable=True)
        return values, ids
    floor = torch.topk(x, k).values[-1]
    ids = (x >= floor).nonzero()[:, 0]  # rising, and more than k where the last value is tied
    values, order = torch.sort(x[ids], descending=True, stable=True)
    return values[:k], ids[order[:k]]


def _is_adjusted(row: Row) -> bool:
    p = row.params
    return bool(
        row.banned
        or p.logit_bias
        or p.presence_penalty
        or p.frequency_penalty
        or p.repetition_penalty != 1.0
    )


def _penalize(x: Tensor, row: Row) -> None:
    """Apply the penalties to logits x [V] in place."""
    p = row.params
    if p.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(row.token_ids)), dtype=torch.long, device=x.device)
        value = x[seen]
        x[seen] = torch.where(value > 0, value / p.repetition_penalty, value * p.repetition_penalty)
    output = row.token_ids[row.num_prompt :]
    if output and (p.presence_penalty or p.frequency_penalty):
        counted = Counter(output)
        ids = torch.tensor(list(counted), device=x.device)
        counts = torch.tensor(list(counted.values()), dtype=x.dtype, device=x.device)
        x[ids] -= p.frequency_penalty * counts + p.presence_penalty


def _bias(x: Tensor, row: Row) -> None:
    """Apply bias and bans to logits x [V] in place."""
    bias = row.params.logit_bias
    if bias:
        ids = torch.tensor(list(bias), device=x.device)
        values = torch.tensor(list(bias.values()), dtype=x.dtype, device=x.device)
        x[ids] += values
        x[ids[values == -100]] = -math.inf
        forced = ids[values == 100]
        if len(forced):
            kept = x[forced]
            x.fill_(-math.inf)
            x[forced] = kept
    if row.banned:
        x[torch.tensor(sorted(row.banned), device=x.device)] = -math.inf


def _filtered(x: Tensor, params: SamplingParams) -> Tensor:
    """Scaled logits [V] with everything that the filters remove at -inf.

    The largest is at 0 before the division, so that no temperature can overflow it.
    """
    x = (x - x.max()) / params.temperature
    if 0 < params.top_k < len(x) or params.top_p < 1.0:
        x = _nucleus(x, params.top_k, params.top_p)
    if params.min_p > 0.0:
        x = x.masked_fill(x < math.log(params.min_p), -math.inf)
    return x


def _nucleus(x: Tensor, top_k: int, top_p: float) -> Tensor:
    """Keep the ``top_k`` largest of x [V] (0: all), then the fewest that reach ``top_p``."""
    size = len(x)
    total = None
    if 0 < top_k < size:
        values, ids = largest(x, top_k)
    else:
        total = torch.logsumexp(x.double(), -1)
        values, ids = largest(x, min(size, _FIRST_TRY))
        if len(ids) < size and torch.exp(values.double() - total).sum() < top_p:
            values, ids = largest(x, size)
    if top_p < 1.0:
        wide = values.double()
        probability = torch.exp(wide - (torch.logsumexp(wide, -1) if total is None else total))
        before = probability.cumsum(-1) - probability
        count = int((before < top_p).sum())  # the first has nothing before it, so one is left
        values, ids = values[:count], ids[:count]
    return torch.full_like(x, -math.inf).scatter_(0, ids, values)


def _logprob(logits: Tensor, token: int, num_top: int | None) -> TokenLogprob | None:
    """Log-probabilities of logits [V] as the model gave them, in float32."""
    if num_top is None:
        return None
    raw = torch.log_softmax(logits.float(), -1)
    top: tuple[tuple[int, float], ...] = ()
    if num_top:
        values, ids = largest(raw, min(num_top, len(raw)))
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprob(token, float(raw[token]), top)
