"""StepInput: a planned step as flat lists, the only thing that a runner sees.

Requests lie one after the other without padding: request s owns the flat rows ``query_starts[s]``
up to ``query_starts[s + 1]``. A row knows its token, its position and the cache slot that its key
and value go to. Prompts, chunks of prompts and generated tokens look alike.
"""

from dataclasses import dataclass

from quantkit.runtime.request import Request
from quantkit.runtime.scheduler import StepPlan


@dataclass(frozen=True)
class StepInput:
    """One step of S requests with T tokens, of which R rows need logits.

    Attributes:
        ids: token ids [T].
        positions: position of each token in its sequence [T].
        slots: block id times block size plus offset, where the token's key and value go [T].
        query_starts: first flat row of each request, and T at the end [S + 1].
        seq_lens: tokens of each request in the cache once the step is done [S].
        block_tables: block ids of each request in order of position [S][...].
        logit_rows: flat rows whose logits are needed [R].
    """

    ids: list[int]
    positions: list[int]
    slots: list[int]
    query_starts: list[int]
    seq_lens: list[int]
    block_tables: list[list[int]]
    logit_rows: list[int]


def build_step(plan: StepPlan, block_size: int) -> tuple[StepInput, list[Request]]:
    """Lay a plan out flat.

    Returns:
        The step, and for each of its logit rows the request that gets a token from it.
    """
    step = StepInput([], [], [], [0], [], [], [])
    sampled: list[Request] = []
    for request, count in plan.tokens.items():
        start, end = request.num_computed, request.num_computed + count
        step.ids.extend(request.token_ids[start:end])
        step.positions.extend(range(start, end))
        step.slots.extend(
            request.table[at // block_size] * block_size + at % block_size
            for at in range(start, end)
        )
        step.query_starts.append(len(step.ids))
        step.seq_lens.append(end)
        step.block_tables.append(request.table[: -(-end // block_size)])
        if plan.is_sampled(request):
            step.logit_rows.append(len(step.ids) - 1)
            sampled.append(request)
    return step, sampled
