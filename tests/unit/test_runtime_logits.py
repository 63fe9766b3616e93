"""Logits of the paged runner against transformers: whole prompts, chunks, mixed steps."""

from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quantkit.formats import open_model
from quantkit.runtime.blocks import BlockPool
from quantkit.runtime.model import Model, load_model
from quantkit.runtime.request import Request, SamplingParams
from quantkit.runtime.runner import ModelRunner
from quantkit.runtime.scheduler import Scheduler, StepPlan
from quantkit.runtime.step import StepInput, build_step
from tests.helpers.tiny import ARCHS, reference_logits, tiny_model

LENGTHS = (1, 17, 130)
BLOCK = 16


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory):
    """arch -> (folder, model), made once."""

    @cache
    def make(arch: str) -> tuple[Path, Model]:
        folder = tiny_model(arch, tmp_path_factory.mktemp(arch))
        return folder, load_model(open_model(folder))

    return make


def _prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, 512, (length,), generator=generator).tolist()


@cache
def _reference(folder: Path, length: int) -> Tensor:
    """Logits [L, V] of transformers for the prompt of that length."""
    return reference_logits(folder, torch.tensor([_prompt(length)]), torch.float32)[0]


@cache
def _wider(folder: Path) -> Path:
    """The mistral model with a window of 17."""
    return tiny_model("mistral", folder.parent / "wider", sliding_window=17)


def _all_rows(step: StepInput) -> StepInput:
    """The same step with logits for every row."""
    return StepInput(
        step.ids, step.positions, step.slots, step.query_starts, step.seq_lens,
        step.block_tables, list(range(len(step.ids))),
    )  # fmt: skip


def _run(model: Model, prompts: list[list[int]], budget: int) -> list[Tensor]:
    """Logits [L, V] of each prompt, computed together in steps of at most ``budget`` tokens."""
    pool = BlockPool(64, BLOCK)
    scheduler = Scheduler(pool, max_num_seqs=len(prompts), max_num_batched_tokens=budget)
    runner = ModelRunner(model, 64, BLOCK)
    requests = [
        Request(str(i), ids, SamplingParams(), seed=0, eos=frozenset(), end=len(ids) + 1)
        for i, ids in enumerate(prompts)
    ]
    pool.allocate(3)  # so that tables do not start at the first block
    rows: dict[Request, list[Tensor]] = {request: [] for request in requests}
    for request in requests:
        scheduler.add(request)
    while scheduler.has_work:
        plan: StepPlan = scheduler.plan()
        step, sampled = build_step(plan, BLOCK)
        logits = runner.execute(_all_rows(step))
        for s, request in enumerate(plan.tokens):
            rows[request].append(logits[step.query_starts[s] : step.query_starts[s + 1]])
        scheduler.commit(plan, {})
        for request in sampled:
            scheduler.remove(request)
    return [torch.cat(rows[request]) for request in requests]


def _assert_near(got: Tensor, want: Tensor) -> None:
    assert got.shape == want.shape
    assert float((got - want).abs().max()) <= 1e-4 * float(want.std())


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("chunk", [1000, 7])
def test_one_prompt(tiny, arch: str, length: int, chunk: int) -> None:
    folder, model = tiny(arch)
    ids = _prompt(length)
    (got,) = _run(model, [ids], chunk)
    _assert_near(got, _reference(folder, length))


@pytest.mark.parametrize("arch", ARCHS)
def test_prompts_of_all_lengths_in_the_same_steps(tiny, arch: str) -> None:
    folder, model = tiny(arch)
    prompts = [_prompt(length) for length in LENGTHS]
    for got, length in zip(_run(model, prompts, 50), LENGTHS, strict=True):
        _assert_near(got, _reference(folder, length))


@pytest.mark.parametrize("length", [10, 15, 16, 17, 40])
def test_window_while_generating(tiny, length: int) -> None:
    """Sixty steps of one token after a prompt, with a window of 16; a window of 17 is noticed."""
    folder, model = tiny("mistral")
    total = 100
    ids = _prompt(total)[: length + 60]
    want = _reference(folder, total)[: len(ids)]
    steps = [ids[:length], *[[token] for token in ids[length:]]]
    runner = ModelRunner(model, 16, BLOCK)
    table = [5, 2, 9, 1, 7, 3, 8]
    got, done = [], 0
    for chunk in steps:
        positions = list(range(done, done + len(chunk)))
        done += len(chunk)
        got.append(
            runner.execute(
                StepInput(
                    ids=chunk,
                    positions=positions,
                    slots=[table[at // BLOCK] * BLOCK + at % BLOCK for at in positions],
                    query_starts=[0, len(chunk)],
                    seq_lens=[done],
                    block_tables=[table[: -(-done // BLOCK)]],
                    logit_rows=list(range(len(chunk))),
                )
            )
        )
    _assert_near(torch.cat(got), want)
    wider = _reference(_wider(folder), total)[: len(ids)]
    with pytest.raises(AssertionError):
        _assert_near(torch.cat(got), wider)


def test_a_step_without_logit_rows(tiny) -> None:
    _, model = tiny("llama")
    step = StepInput([5, 6], [0, 1], [16, 17], [0, 2], [2], [[1]], [])
    assert ModelRunner(model, 2, BLOCK).execute(step).shape == (0, 512)
