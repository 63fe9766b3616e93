"""A runner without a model: deterministic logits from token ids, in microseconds.

It keeps the token ids themselves in the slots of its cache and reads each sequence back through the
block tables that a step names, so a wrong slot, table, position or prefix hit changes the answer or
stops the step.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor

from quantkit.core.tokenizer import Tokenizer
from quantkit.runtime.engine import Engine
from quantkit.runtime.model import Model
from quantkit.runtime.request import Request, SamplingParams
from quantkit.runtime.sampler import Choice, Row, choose
from quantkit.runtime.step import StepInput

EOS = 256
VOCAB = 260  # 256 bytes, then </s> <|im_start|> <|im_end|> and one id that no token has
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class FakeConfig:
    """The part of a config that the engine reads."""

    vocab_size: int = VOCAB
    max_positions: int = 256
    num_layers: int = 1
    num_kv_heads: int = 1
    head_dim: int = 1


def hashed_logits(history: Sequence[int], vocab: int) -> Tensor:
    """Wide random logits [vocab], a function of the history alone."""
    digest = hashlib.blake2b(np.asarray(history, np.int64).tobytes(), digest_size=8).digest()
    noise = np.random.default_rng(int.from_bytes(digest, "little")).standard_normal(vocab)
    return torch.from_numpy((3.0 * noise).astype(np.float32))


def scripted_logits(script: Sequence[int]) -> Callable[[Sequence[int], int], Tensor]:
    """The token at position p is always script[p - 1], whatever stands before it."""

    def logits(history: Sequence[int], vocab: int) -> Tensor:
        out = torch.zeros(vocab)
        out[script[(len(history) - 1) % len(script)]] = 10.0
        return out

    return logits


@dataclass
class FakeModel:
    """What stands for a model.

    Attributes:
        logits: (history, vocab) -> logits [vocab].
        delay: seconds that a step takes.
        before: called with every step; may raise.
        steps: every step that was executed.
    """

    config: FakeConfig = field(default_factory=FakeConfig)
    logits: Callable[[Sequence[int], int], Tensor] = hashed_logits
    delay: float = 0.0
    before: Callable[[StepInput], None] | None = None
    steps: list[StepInput] = field(default_factory=list)
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


class FakeRunner:
    """Executes steps on a FakeModel; see the module."""

    def __init__(self, model: FakeModel, num_blocks: int, block_size: int) -> None:
        self.model = model
        self.block_size = block_size
        self.slots: list[tuple[int, int] | None] = [None] * ((num_blocks + 1) * block_size)

    def execute(self, step: StepInput) -> Tensor:
        if self.model.delay:
            time.sleep(self.model.delay)
        if self.model.before is not None:
            self.model.before(step)
        self.model.steps.append(step)
        assert len(set(step.slots)) == len(step.slots), "two tokens share a slot"
        for token, position, slot in zip(step.ids, step.positions, step.slots, strict=True):
            assert slot >= self.block_size, "a token goes to the null block"
            self.slots[slot] = (position, token)
        vocab = self.model.config.vocab_size
        rows = [torch.empty(0, vocab)]
        wanted = set(step.logit_rows)
        for s, (length, table) in enumerate(zip(step.seq_lens, step.block_tables, strict=True)):
            history = self._read(table, length)
            for row in range(step.query_starts[s], step.query_starts[s + 1]):
                assert history[step.positions[row]] == step.ids[row]
                if row in wanted:
                    seen = history[: step.positions[row] + 1]
                    rows.append(self.model.logits(seen, vocab)[None])
        return torch.cat(rows)

    def _read(self, table: Sequence[int], length: int) -> list[int]:
        history = []
        for at in range(length):
            entry = self.slots[
                table[at // self.block_size] * self.block_size + at % self.block_size
            ]
            assert entry is not None, f"position {at} was never written"
            assert entry[0] == at, f"position {at} holds the token of position {entry[0]}"
            history.append(entry[1])
        return history


def make_fake_runner(model: Model, num_blocks: int, block_size: int) -> FakeRunner:
    """``make_runner`` of an engine."""
    return FakeRunner(cast(FakeModel, model), num_blocks, block_size)


def scripted(text: str | bytes) -> FakeModel:
    """A model that writes a text, from a prompt of one token on, and then ends."""
    data = text.encode() if isinstance(text, str) else text
    return FakeModel(logits=scripted_logits([*data, EOS]))


def byte_tokenizer(template: str | None = TEMPLATE) -> Tokenizer:
    """One token for each byte (id = byte), an end-of-text token and two chat markers."""
    chars = _byte_chars()
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={char: byte for byte, char in chars.items()}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["</s>", "<|im_start|>", "<|im_end|>"])
    return Tokenizer(backend, settings={"eos_token": "</s>"}, template=template)


def fake_engine(
    model: FakeModel | None = None, tokenizer: Tokenizer | None = None, **options: Any
) -> Engine:
    """An engine, not started, on a fake model."""
    return Engine(
        cast(Model, FakeModel() if model is None else model),
        byte_tokenizer() if tokenizer is None else tokenizer,
        make_runner=make_fake_runner,
        **options,
    )


def alone(
    model: FakeModel,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    seed: int = 0,
    limit: int = 10**9,
) -> tuple[list[int], str]:
    """What a request must give: the slow way, without cache, batch or engine.

    Returns:
        The tokens and the finish reason, stop strings not considered.
    """
    end = limit if params.max_tokens is None else min(limit, len(prompt_ids) + params.max_tokens)
    eos = {*params.stop_token_ids} | (set() if params.ignore_eos else {EOS})
    request = Request("alone", prompt_ids, params, seed=seed, eos=frozenset(eos), end=end)
    while True:
        logits = model.logits(request.token_ids, model.config.vocab_size)[None]
        (choice,) = choose(logits, [Row.of(request)])
        assert isinstance(choice, Choice)
        request.token_ids.append(choice.token_id)
        finish = request.finish_reason()
        if finish is not None:
            return request.output_ids, finish


def _byte_chars() -> dict[int, str]:
    """The printable character that byte-level tokenizers write for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{byte: chr(byte) for byte in printable},
        **{byte: chr(256 + i) for i, byte in enumerate(others)},
    }
