"""The Python interface on tiny real models: alone or beside others, streamed or not."""

import random
from pathlib import Path

import pytest
import torch

from quantkit.errors import ModelError, ResourceError, UsageError
from quantkit.runtime import LLM, RequestError, SamplingParams, load
from quantkit.runtime.request import GenerationError
from tests.helpers.tiny import tiny_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
MESSAGES = [{"role": "user", "content": "def read(self, size):"}]
GAP = 0.002
"""Least distance of the two best logits, in standard deviations, where tokens are compared: twenty
times the largest difference between two correct programs."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def llm(folder: Path):
    # A pool and a budget so small that prompts come in chunks and requests lose their blocks.
    with load(
        folder, max_num_seqs=4, num_blocks=14, block_size=8, max_num_batched_tokens=20
    ) as one:
        yield one


def _greedy_reference(folder: Path, prompts: list[list[int]], count: int) -> list[list[int]]:
    """Greedy continuations by transformers, cut where the two best logits come close."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    answers: list[list[int]] = []
    for ids in prompts:
        out: list[int] = []
        with torch.inference_mode():
            for _ in range(count):
                logits = model(torch.tensor([ids + out])).logits[0, -1]
                first, second = logits.topk(2).values
                if first - second < GAP * logits.std():
                    break
                out.append(int(logits.argmax()))
        answers.append(out)
    return answers


PROMPTS = [
    "def encode(self, text):",
    "return",
    "import json\n" * 6,
    "class Tokenizer:\n    pass\n" * 3,
    "é 漢字 😀",
    "def encode(self, text):\n    return",
]


def test_greedy_equals_transformers_in_a_crowd_and_alone(llm: LLM, folder: Path) -> None:
    together = llm.generate(PROMPTS, GREEDY)
    assert llm.engine.stats().preemptions > 0
    ids = [llm.tokenizer.encode(prompt) for prompt in PROMPTS]
    reference = _greedy_reference(folder, ids, 24)
    for prompt, prompt_ids, answer, want in zip(PROMPTS, ids, together, reference, strict=True):
        (alone,) = llm.generate([prompt], GREEDY)
        assert list(answer.token_ids[: len(want)]) == want
        assert list(alone.token_ids[: len(want)]) == want
        assert answer.num_prompt_tokens == len(prompt_ids)
        assert (answer.finish_reason, answer.num_output_tokens) == ("length", 24)
    assert sum(len(want) for want in reference) > 72, "too little was compared"


def test_a_seed_repeats_and_streams_the_same(llm: LLM) -> None:
    params = SamplingParams(seed=7, max_tokens=16, top_p=0.9, logprobs=1)
    one, two = llm.generate(["import"] * 2, params)
    assert (one.text, one.token_ids) == (two.text, two.token_ids)
    assert one.logprobs is not None
    assert [entry.token_id for entry in one.logprobs] == list(one.token_ids)
    outputs = list(llm.stream("import", params))
    assert "".join(output.text for output in outputs) == one.text
    assert outputs[-1].finish_reason == one.finish_reason
    assert [o.is_last for o in outputs] == [False] * (len(outputs) - 1) + [True]
    other = SamplingParams(seed=8, max_tokens=16, top_p=0.9)
    assert llm.generate(["import"], other)[0].token_ids != one.token_ids


def test_the_crowd_changes_nothing(llm: LLM) -> None:
    """Greedy and seeded requests, with every kind of processing, shuffled among others."""
    kinds = [
        GREEDY,
        SamplingParams(seed=1, max_tokens=20),
        SamplingParams(seed=2, max_tokens=20, temperature=0.7, top_k=20, min_p=0.02),
        SamplingParams(seed=3, max_tokens=20, presence_penalty=1.0, logit_bias={40: 5.0, 41: -100}),
    ]
    alone = [llm.generate(["def decode"], kind)[0].token_ids for kind in kinds]
    order = [0, 1, 2, 3] * 4
    random.Random(0).shuffle(order)
    crowd = llm.generate(["def decode"] * 16, [kinds[i] for i in order])
    assert [answer.token_ids for answer in crowd] == [alone[i] for i in order]


def test_chat_renders_the_template(llm: LLM) -> None:
    ids = llm.tokenizer.encode_chat(MESSAGES, add_generation_prompt=True)
    answer = llm.chat(MESSAGES, GREEDY)
    assert answer.num_prompt_tokens == len(ids)
    assert answer.token_ids == llm.generate([ids], GREEDY)[0].token_ids
    streamed = "".join(output.text for output in llm.stream_chat(MESSAGES, GREEDY))
    assert streamed == answer.text


def test_params_for_each_prompt(llm: LLM) -> None:
    some = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (1, 5)]
    assert [c.num_output_tokens for c in llm.generate(["a", "b"], some)] == [1, 5]
    with pytest.raises(UsageError, match="1 prompts, but 2 params"):
        llm.generate(["a"], some)
    with pytest.raises(UsageError, match="a list of prompts"):
        llm.generate("a")


def test_one_bad_prompt_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(RequestError, match="the prompt has 300 tokens"):
        llm.generate(["a", [5] * 300], GREEDY)
    llm.generate(["b"], GREEDY)
    stats = llm.engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.free_blocks == stats.total_blocks


def test_leaving_a_stream_aborts_it(llm: LLM) -> None:
    before = llm.engine.stats().finished.get("abort", 0)
    stream = llm.stream("x", SamplingParams(max_tokens=150, ignore_eos=True))
    next(stream)
    stream.close()
    llm.generate(["y"], SamplingParams(max_tokens=1))
    assert llm.engine.stats().finished["abort"] == before + 1


def test_a_failed_request_raises(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(step: object) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine._loop.runner, "execute", broken)
        with pytest.raises(GenerationError, match="generation failed: RuntimeError: no memory"):
            llm.generate(["x"], GREEDY)
    assert llm.generate(["x"], GREEDY)[0].num_output_tokens == 24


def test_load_says_what_is_wrong(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown device 'gpu'"):
        load(folder, device="gpu")
    with pytest.raises(UsageError, match="device 'meta' is not supported"):
        load(folder, device="meta")
    with pytest.raises(UsageError, match="unknown dtype 'int8'"):
        load(folder, dtype="int8")  # type: ignore[arg-type]
    if not torch.cuda.is_available():
        with pytest.raises(ResourceError, match="there is no device 'cuda:3'"):
            load(folder, device="cuda:3")
    with pytest.raises(ModelError):
        load(tmp_path)


def test_half_precision(folder: Path) -> None:
    with load(folder, dtype="bfloat16", max_model_len=64) as llm:
        assert llm.generate(["import"], GREEDY)[0].num_output_tokens == 24
