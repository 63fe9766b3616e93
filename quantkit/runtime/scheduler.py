"""Scheduler: which requests run in the next step, and how many tokens of each.

A step is a mapping from request to number of tokens under one budget. A request that still has
prompt to compute, one that generates, one that found a prefix in the cache and one that lost its
blocks and computes again differ only in how many of their tokens are not computed yet.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from quantkit.runtime.blocks import BlockPool
from quantkit.runtime.request import Request


@dataclass(frozen=True)
class StepPlan:
    """One step.

    Attributes:
        tokens: how many tokens of each request to compute, oldest request first.
        started: requests that run for the first time.
        preempted: requests that lost their blocks to older ones and wait again.
    """

    tokens: Mapping[Request, int] = field(default_factory=dict)
    started: tuple[Request, ...] = ()
    preempted: tuple[Request, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the step."""
        return sum(self.tokens.values())

    def is_sampled(self, request: Request) -> bool:
        """Whether the step computes the newest token of the request, so that a new one follows."""
        return request.num_computed + self.tokens[request] == request.num_tokens


class Scheduler:
    """First come, first served, with preemption of the newest.

    Every running request is older than every waiting one. Each step gives every running request at
    least one token, so no long prompt stalls a text that is being generated. A request takes at
    most half of what the budget has left while others may want it, so a short prompt starts beside
    a long one. Only the newest request can lose its blocks, so the oldest always gets on and every
    request ends some day.

    Args:
        pool: the cache's blocks. A request is only added when it fits into the empty pool.
        max_num_seqs: most requests that run at once.
        max_num_batched_tokens: most tokens in a step; at least ``max_num_seqs``.
    """

    def __init__(self, pool: BlockPool, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        assert max_num_batched_tokens >= max_num_seqs > 0
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.running: list[Request] = []
        self.waiting: OrderedDict[str, Request] = OrderedDict()

    @property
    def has_work(self) -> bool:
        """Whether a step would compute anything."""
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        """Let a new request wait for its turn."""
        assert self.pool.blocks_for(request.end) <= self.pool.num_blocks
        self.waiting[request.id] = request

    def remove(self, request: Request) -> None:
        """Forget a request in any state and give its blocks back."""
        if self.waiting.pop(request.id, None) is None:
            self.running.remove(request)
        self._drop_blocks(request)

    def plan(self) -> StepPlan:
        """Choose the next step and give its requests the blocks that they need."""
        tokens: dict[Request, int] = {}
        started: list[Request] = []
        preempted: list[Request] = []
        budget = self.max_num_batched_tokens
        index = 0
        while index < len(self.running):
            request = self.running[index]
            behind = len(self.running) - index - 1
            count = _share(request, budget - behind)
            if not self._grow(request, count, preempted):
                break  # it was the newest itself
            tokens[request] = count
            budget -= count
            index += 1
        while not preempted and budget and self.waiting and len(self.running) < self.max_num_seqs:
            request = next(iter(self.waiting.values()))
            is_new = request.num_cached is None
            if not self._admit(request):
                break
            if is_new:
                started.append(request)
            tokens[request] = _share(request, budget)
            budget -= tokens[request]
        for request, count in tokens.items():  # what nobody else wanted, oldest first
            held = min(request.num_tokens, len(request.table) * self.pool.block_size)
            more = min(held - request.num_computed - count, budget)
            tokens[request] += more
            budget -= more
        return StepPlan(tokens, tuple(started), tuple(preempted))

    def commit(self, plan: StepPlan, new_tokens: Mapping[Request, int]) -> None:
        """Note that a step was computed, and append the tokens that were sampled from it."""
        for request, count in plan.tokens.items():
            request.num_computed += count
            self._register(request)
            if request in new_tokens:
                request.token_ids.append(new_tokens[request])

    def check(self, plan: StepPlan | None = None) -> None:
        """Assert the invariants, and those of a plan that is not committed yet."""
        everyone = [*self.running, *self.waiting.values()]
        self.pool.check(request.table for request in everyone)
        assert len(self.running) <= self.max_num_seqs
        for request in self.running:
            assert request.num_computed <= len(request.table) * self.pool.block_size
            assert request.num_computed < request.num_tokens
            assert request.num_registered <= request.num_computed // self.pool.block_size
        for request in self.waiting.values():
            assert not request.table and not request.num_computed
        if plan is None:
            return
        assert plan.num_tokens <= self.max_num_batched_tokens, "the budget is exceeded"
        assert list(plan.tokens) == self.running, "a running request stands still"
        assert not {*plan.preempted} & {*plan.tokens}, "a request lost its blocks for nothing"
        for request, count in plan.tokens.items():
            reached = request.num_computed + count
            assert count > 0 and reached <= request.num_tokens
            assert reached <= len(request.table) * self.pool.block_size

    def _grow(self, request: Request, count: int, preempted: list[Request]) -> bool:
        """Get blocks for ``count`` more tokens, from newer requests if need be."""
        need = self.pool.blocks_for(request.num_computed + count) - len(request.table)
        while need > self.pool.num_free:
            victim = self.running.pop()
            self._drop_blocks(victim)
            self.waiting[victim.id] = victim
            self.waiting.move_to_end(victim.id, last=False)
            preempted.append(victim)
            if victim is request:
                return False
        request.table += self.pool.allocate(max(need, 0))
        return True

    def _admit(self, request: Request) -> bool:
        """Start the oldest waiting request if all of its known tokens find a place."""
        cached = self.pool.match(request.token_ids)
        need = self.pool.blocks_for(request.num_tokens) - len(cached)
        if need > self.pool.num_free_without(cached):
            return False
        del self.waiting[request.id]
        self.running.append(request)
        request.chain = self.pool.share(cached)
        request.table = cached + self.pool.allocate(need)
        request.num_registered = len(cached)
        request.num_computed = len(cached) * self.pool.block_size
        if request.num_cached is None:
            request.num_cached = request.num_computed
        return True

    def _register(self, request: Request) -> None:
        """Offer the blocks that have become full to the prefix cache."""
        size = self.pool.block_size
        for index in range(request.num_registered, request.num_computed // size):
            tokens = request.token_ids[index * size : (index + 1) * size]
            request.chain = self.pool.register(request.table[index], request.chain, tokens)
            request.num_registered = index + 1

    def _drop_blocks(self, request: Request) -> None:
        self.pool.release(request.table)
        request.table = []
        request.num_computed = 0


def _share(request: Request, budget: int) -> int:
    """Tokens of a request in a step while others may want some: all, or half of the budget."""
    return min(request.num_tokens - request.num_computed, max(1, budget // 2))
