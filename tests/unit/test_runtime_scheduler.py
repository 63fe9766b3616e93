"""What a step holds: shares of the budget, order, preemption and admission, case by case."""

import pytest

from quantkit.runtime.blocks import BlockPool
from quantkit.runtime.request import Request, SamplingParams
from quantkit.runtime.scheduler import Scheduler, StepPlan
from quantkit.runtime.step import build_step


def _request(name: str, length: int, output: int = 50, first: int = 0) -> Request:
    ids = list(range(first, first + length))
    params = SamplingParams(temperature=0.0)
    return Request(name, ids, params, seed=0, eos=frozenset(), end=length + output)


def _scheduler(num_blocks: int = 100, *, seqs: int = 4, budget: int = 16) -> Scheduler:
    pool = BlockPool(num_blocks, 4)
    return Scheduler(pool, max_num_seqs=seqs, max_num_batched_tokens=budget)


def _step(scheduler: Scheduler, token: int = 7) -> dict[str, int]:
    """Do a step, give everybody who gets one the token, and return the plan by name."""
    plan = scheduler.plan()
    scheduler.check(plan)
    sampled = [request for request in plan.tokens if plan.is_sampled(request)]
    scheduler.commit(plan, dict.fromkeys(sampled, token))
    scheduler.check()
    return _names(plan)


def _names(plan: StepPlan) -> dict[str, int]:
    return {request.id: count for request, count in plan.tokens.items()}


def test_a_lone_prompt_takes_the_whole_budget() -> None:
    scheduler = _scheduler()
    scheduler.add(_request("a", 40))
    assert [_step(scheduler) for _ in range(4)] == [{"a": 16}, {"a": 16}, {"a": 8}, {"a": 1}]


def test_a_short_prompt_starts_beside_a_long_one() -> None:
    scheduler = _scheduler()
    scheduler.add(_request("long", 100))
    _step(scheduler)
    scheduler.add(_request("short", 3, first=500))
    assert _step(scheduler) == {"long": 13, "short": 3}  # what short leaves goes back
    assert _step(scheduler) == {"long": 15, "short": 1}


def test_no_long_prompt_stalls_the_others() -> None:
    scheduler = _scheduler(seqs=5, budget=8)
    for i in range(5):
        scheduler.add(_request(str(i), 100, first=100 * i))
    assert _step(scheduler) == {"0": 4, "1": 2, "2": 1, "3": 1}
    assert (
        _step(scheduler) == {"0": 2, "1": 2, "2": 1, "3": 1, "4": 2} or len(scheduler.running) == 4
    )
    for _ in range(5):
        plan = _step(scheduler)
        assert sum(plan.values()) == 8
        assert min(plan.values()) >= 1


def test_everybody_gets_a_token_however_many_the_others_want() -> None:
    """As when each has tokens to verify: the budget holds, and so do the blocks."""
    scheduler = _scheduler(seqs=5, budget=5)
    requests = [_request(str(i), 3, first=10 * i) for i in range(5)]
    for request in requests:
        scheduler.add(request)
    while len(scheduler.running) < 5 or any(r.num_computed + 1 < r.num_tokens for r in requests):
        _step(scheduler)
    for request in requests:
        request.token_ids += [1] * 6
    assert _step(scheduler) == dict.fromkeys("01234", 1)


def test_seats_limit_what_runs() -> None:
    scheduler = _scheduler(seqs=2)
    requests = [_request(str(i), 2, first=10 * i) for i in range(3)]
    for request in requests:
        scheduler.add(request)
    assert _step(scheduler) == {"0": 2, "1": 2}
    scheduler.remove(requests[0])
    assert _step(scheduler) == {"1": 1, "2": 2}


def test_the_newest_loses_its_blocks_and_comes_back_first() -> None:
    scheduler = _scheduler(num_blocks=4, budget=64)
    old, new, later = _request("old", 7, 9), _request("new", 7, 9, 50), _request("later", 3, 9, 90)
    for request in (old, new, later):
        scheduler.add(request)
    _step(scheduler)  # two blocks each
    _step(scheduler)
    plan = scheduler.plan()  # both need a third
    scheduler.check(plan)
    assert _names(plan) == {"old": 1}
    assert plan.preempted == (new,)
    assert list(scheduler.waiting) == ["new", "later"]
    assert (new.num_computed, new.table, new.num_tokens) == (0, [], 9)
    scheduler.commit(plan, {old: 7})
    assert _step(scheduler) == {"old": 1}  # new does not fit, and later may not overtake it
    scheduler.remove(old)
    assert _step(scheduler) == {"new": 5, "later": 3}  # its first block was still there
    assert new.num_cached == 0  # what it found at its first start


def test_what_is_computed_again_in_pieces_gives_no_token_before_its_end() -> None:
    scheduler = _scheduler(budget=8)
    request = _request("r", 4)
    scheduler.add(request)
    for _ in range(10):
        _step(scheduler)
    assert request.num_output == 10
    scheduler.pool = BlockPool(100, 4)  # everything is lost
    request.table, request.num_computed = [], 0
    scheduler.running.clear()
    scheduler.add(request)
    assert [_step(scheduler), request.num_output] == [{"r": 8}, 10]
    assert [_step(scheduler), request.num_output] == [{"r": 6}, 11]


def test_what_follows_a_hit_is_cached_behind_it() -> None:
    scheduler = _scheduler()
    first = _request("first", 5)
    second = _request("second", 13)  # shares its first block
    for request in (first, second):
        scheduler.add(request)
        _step(scheduler)
        scheduler.remove(request)
    assert second.num_cached == 4
    assert len(scheduler.pool.match(list(range(13)))) == 3
    assert scheduler.pool.match(list(range(4, 13))) == []


def test_one_that_does_not_fit_now_is_not_overtaken() -> None:
    scheduler = _scheduler(num_blocks=10, budget=64)
    first, big = _request("first", 20, 20), _request("big", 24, 8, first=100)
    small = _request("small", 3, 8, first=200)
    for request in (first, big, small):
        scheduler.add(request)
    assert _step(scheduler) == {"first": 20}
    assert _step(scheduler) == {"first": 1}
    scheduler.remove(first)
    assert _step(scheduler) == {"big": 24, "small": 3}


def test_a_request_larger_than_the_pool_is_a_fault_of_the_caller() -> None:
    scheduler = _scheduler(num_blocks=3)
    with pytest.raises(AssertionError):
        scheduler.add(_request("r", 7, 6))


def test_a_flat_step() -> None:
    scheduler = _scheduler(budget=16)
    one, two = _request("one", 5, first=10), _request("two", 30, first=100)
    scheduler.add(one)
    _step(scheduler, token=99)
    scheduler.add(two)
    plan = scheduler.plan()
    step, sampled = build_step(plan, 4)
    assert sampled == [one]
    assert step.ids == [99, *range(100, 115)]
    assert step.positions == [5, *range(15)]
    assert step.query_starts == [0, 1, 16]
    assert step.seq_lens == [6, 15]
    assert step.logit_rows == [0]
    assert step.block_tables == [one.table[:2], two.table[:4]]
    assert step.slots == [
        one.table[1] * 4 + 1,
        *(two.table[at // 4] * 4 + at % 4 for at in range(15)),
    ]
