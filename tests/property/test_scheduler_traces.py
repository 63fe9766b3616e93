"""Random traces through the step loop: every answer right, every invariant kept, nobody starved."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from quantkit.runtime.loop import StepLoop
from quantkit.runtime.request import Request, SamplingParams
from tests.helpers.fake_backend import EOS, FakeConfig, FakeModel, FakeRunner, alone, hashed_logits

VOCAB = 12


@dataclass(frozen=True)
class Arrival:
    """A request of a trace: when it comes, what it asks, when it is aborted."""

    step: int
    prompt: tuple[int, ...]
    max_tokens: int
    stop_token: int | None
    abort_after: int | None
    temperature: float


@st.composite
def traces(draw: st.DrawFn) -> tuple[dict[str, int | bool], list[Arrival]]:
    """Pool sizes and arrivals; prompts come from few tokens and stems, so prefixes repeat."""
    max_num_seqs = draw(st.integers(1, 5))
    sizes: dict[str, int | bool] = {
        "num_blocks": draw(st.integers(3, 20)),
        "block_size": draw(st.sampled_from([1, 1, 2, 3, 4])),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_seqs + draw(st.integers(0, 8)),
        "prefix_cache": draw(st.booleans()),
    }
    capacity = int(sizes["num_blocks"]) * int(sizes["block_size"])
    stems = draw(st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=3))
    arrivals = []
    for _ in range(draw(st.integers(1, 10))):
        stem = draw(st.sampled_from(stems))
        prompt = (*stem, *draw(st.lists(st.integers(0, 3), min_size=1, max_size=4)))
        prompt = prompt[: max(1, capacity - 1)]
        arrivals.append(
            Arrival(
                step=draw(st.integers(0, 12)),
                prompt=prompt,
                max_tokens=draw(st.integers(1, 12)),
                stop_token=draw(st.none() | st.integers(0, VOCAB - 1)),
                abort_after=draw(st.none() | st.integers(0, 10)),
                temperature=draw(st.sampled_from([0.0, 1.0])),
            )
        )
    return sizes, arrivals


@given(traces())
def test_traces(trace: tuple[dict[str, int | bool], list[Arrival]]) -> None:
    sizes, arrivals = trace
    model = FakeModel(FakeConfig(vocab_size=VOCAB), logits=hashed_logits)
    loop = StepLoop(
        FakeRunner(model, int(sizes["num_blocks"]), int(sizes["block_size"])),
        num_blocks=int(sizes["num_blocks"]),
        block_size=int(sizes["block_size"]),
        max_num_seqs=int(sizes["max_num_seqs"]),
        max_num_batched_tokens=int(sizes["max_num_batched_tokens"]),
        prefix_cache=bool(sizes["prefix_cache"]),
    )
    capacity = int(sizes["num_blocks"]) * int(sizes["block_size"])
    requests: dict[str, tuple[Arrival, Request, SamplingParams]] = {}
    tokens: dict[str, list[int]] = {}
    ends: dict[str, str] = {}
    arrived: list[Request] = []
    now = 0
    # Each step the oldest request gets on by a token at least, so all end within this many.
    patience = sum(min(capacity, len(a.prompt) + a.max_tokens) for a in arrivals) + 13
    while len(ends) < len(arrivals):
        assert now <= patience, "a request starves"
        for i, arrival in enumerate(arrivals):
            if arrival.step == now:
                params = SamplingParams(
                    max_tokens=arrival.max_tokens,
                    temperature=arrival.temperature,
                    seed=i,
                    stop_token_ids=() if arrival.stop_token is None else (arrival.stop_token,),
                )
                end = min(capacity, len(arrival.prompt) + arrival.max_tokens)
                eos = frozenset(params.stop_token_ids)
                request = Request(str(i), arrival.prompt, params, seed=i, eos=eos, end=end)
                requests[str(i)], tokens[str(i)] = (arrival, request, params), []
                arrived.append(request)
                loop.add(request)
        aborted = [
            event
            for name, (arrival, _, _) in requests.items()
            if arrival.abort_after is not None and now == arrival.step + arrival.abort_after
            for event in loop.abort(name)
        ]
        loop.scheduler.check()
        events = aborted
        if loop.has_work:
            plan = loop.scheduler.plan()
            loop.scheduler.check(plan)
            events += loop._execute(plan)
        for event in events:
            assert event.error is None, event.error
            name = event.request.id
            assert name not in ends, "news of a request that has ended"
            if event.token_id is not None:
                tokens[name].append(event.token_id)
            if event.finish is not None:
                ends[name] = event.finish
                arrived.remove(event.request)
        loop.scheduler.check()
        assert [*loop.scheduler.running, *loop.scheduler.waiting.values()] == arrived
        now += 1
    assert not loop.has_work
    assert loop.scheduler.pool.num_free == int(sizes["num_blocks"]), "blocks are lost"
    for name, (arrival, request, params) in requests.items():
        want, reason = alone(model, arrival.prompt, params, seed=int(name), limit=request.end)
        if ends[name] == "abort":
            assert tokens[name] == want[: len(tokens[name])]
        else:
            assert (tokens[name], ends[name]) == (want, reason)
        cached = request.num_cached or 0
        assert cached < len(arrival.prompt), "nothing was left to compute"
        assert cached % int(sizes["block_size"]) == 0
    assert EOS >= VOCAB  # no end-of-text token hides in the vocabulary of the trace


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 6))
def test_everybody_runs_in_every_step(lengths: list[int], max_num_seqs: int) -> None:
    """A long prompt never holds up the requests that run beside it, old or new."""
    model = FakeModel(FakeConfig(vocab_size=VOCAB))
    loop = StepLoop(
        FakeRunner(model, 200, 4),
        num_blocks=200,
        block_size=4,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + 2,
        prefix_cache=True,
    )
    for i, length in enumerate(lengths):
        params = SamplingParams(max_tokens=5, temperature=0.0)
        loop.add(Request(str(i), [i] * length, params, seed=0, eos=frozenset(), end=length + 5))
    while loop.has_work:
        plan = loop.scheduler.plan()
        loop.scheduler.check(plan)  # every running request has at least one token in the plan
        loop._execute(plan)
        loop.scheduler.check()
    assert loop.scheduler.pool.num_free == 200
