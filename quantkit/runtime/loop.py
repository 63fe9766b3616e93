"""StepLoop: plan -> execute -> sample -> commit, one step at a time and without threads."""

import logging
from collections.abc import Iterable, Sequence

from torch import Tensor

from quantkit.errors import QuantkitError
from quantkit.runtime.blocks import BlockPool
from quantkit.runtime.delivery import Event
from quantkit.runtime.request import GenerationError, Request
from quantkit.runtime.runner import Runner
from quantkit.runtime.sampler import Choice, Row, choose
from quantkit.runtime.scheduler import Scheduler, StepPlan
from quantkit.runtime.step import build_step

log = logging.getLogger(__name__)


class StepLoop:
    """The state of one engine, changed by one thread.

    A request that fails ends alone. A step that fails ends the requests in it. A fault of the
    scheduler itself ends all requests and starts from an empty cache.

    Attributes:
        num_steps, num_tokens: steps done, and tokens computed in them.
        num_prompt_tokens, num_cached_tokens: tokens of all prompts started, and how many of them
            came from the prefix cache.
        num_preemptions: how often a request lost its blocks.

    Args:
        runner: computes steps.
        num_blocks: blocks that the runner's cache has to hand out.
        block_size: tokens in a block.
        max_num_seqs, max_num_batched_tokens: see ``Scheduler``.
        prefix_cache: see ``BlockPool``.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        prefix_cache: bool,
    ) -> None:
        self.runner = runner
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.prefix_cache = prefix_cache
        self.num_steps = self.num_tokens = self.num_preemptions = 0
        self.num_prompt_tokens = self.num_cached_tokens = 0
        self._requests: dict[str, Request] = {}
        self.scheduler = self._new_scheduler()

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return self.scheduler.has_work

    def add(self, request: Request) -> None:
        """Take a request in."""
        self.scheduler.add(request)
        self._requests[request.id] = request

    def abort(self, request_id: str) -> list[Event]:
        """Drop a request in whatever state it is; unknown and finished ids are ignored."""
        request = self._requests.get(request_id)
        if request is None:
            return []
        self._remove([request])
        return [Event(request, finish="abort")]

    def abort_all(self) -> list[Event]:
        """Drop every request."""
        return [event for request_id in list(self._requests) for event in self.abort(request_id)]

    def step(self) -> list[Event]:
        """Do one step; returns what it did to each request."""
        try:
            plan = self.scheduler.plan()
            return self._execute(plan)
        except Exception as error:  # a fault of ours: no state of the scheduler can be trusted
            log.exception("the scheduler failed")
            events = _failed(self._requests.values(), error)
            self._requests.clear()
            self.scheduler = self._new_scheduler()
            return events

    def _execute(self, plan: StepPlan) -> list[Event]:
        assert plan.tokens, "a step without tokens"
        self.num_prompt_tokens += sum(request.num_prompt for request in plan.started)
        self.num_cached_tokens += sum(request.num_cached or 0 for request in plan.started)
        self.num_preemptions += len(plan.preempted)
        step, sampled = build_step(plan, self.block_size)
        try:
            logits = self.runner.execute(step)
            choices = _choose(logits, sampled)
        except Exception as error:  # out of memory, a kernel's fault: the next step may well work
            log.exception("a step of %d requests failed", len(plan.tokens))
            self._remove(plan.tokens)
            return _failed(plan.tokens, error)
        return self._commit(plan, dict(zip(sampled, choices, strict=True)))

    def _commit(
        self, plan: StepPlan, choices: dict[Request, Choice | GenerationError]
    ) -> list[Event]:
        events: list[Event] = []
        failed = {r: c for r, c in choices.items() if isinstance(c, GenerationError)}
        for request, error in failed.items():
            events += _failed([request], error)
        # Removed first: what they left in the cache must not be offered to others.
        self._remove(failed)
        done = StepPlan({r: n for r, n in plan.tokens.items() if r not in failed})
        good = {r: c for r, c in choices.items() if isinstance(c, Choice)}
        self.scheduler.commit(done, {r: c.token_id for r, c in good.items()})
        self.num_steps += 1
        self.num_tokens += plan.num_tokens
        for request, choice in good.items():
            finish = request.finish_reason()
            events.append(Event(request, choice.token_id, choice.logprob, finish))
            if finish is not None:
                self._remove([request])
        return events

    def _remove(self, requests: Iterable[Request]) -> None:
        for request in requests:
            del self._requests[request.id]
            self.scheduler.remove(request)

    def _new_scheduler(self) -> Scheduler:
        pool = BlockPool(self.num_blocks, self.block_size, prefix_cache=self.prefix_cache)
        return Scheduler(
            pool,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )


def _choose(logits: Tensor, requests: Sequence[Request]) -> list[Choice | GenerationError]:
    """Choose tokens for all rows, or row by row where one of them raises."""
    if not requests:
        return []
    rows = [Row.of(request) for request in requests]
    try:
        return choose(logits, rows)
    except Exception:  # find the one at fault
        log.exception("sampling failed")
    choices: list[Choice | GenerationError] = []
    for i, row in enumerate(rows):
        try:
            choices += choose(logits[i : i + 1], [row])
        except Exception as error:
            choices.append(GenerationError(describe(error)))
    return choices


def _failed(requests: Iterable[Request], error: Exception) -> list[Event]:
    return [Event(request, error=describe(error)) for request in requests]


def describe(error: Exception) -> str:
    """One line about an exception."""
    if isinstance(error, QuantkitError):
        return error.message
    first_line = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
