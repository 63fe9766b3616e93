"""Engine: many requests at once on one model, in the background.

Two threads: one computes steps, the other turns tokens into text and calls the clients back, so the
step loop never waits for a client.
"""

import logging
import queue
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quantkit.core.config import ModelConfig
from quantkit.core.tokenizer import Tokenizer
from quantkit.errors import ResourceError, UsageError
from quantkit.runtime.delivery import Delivery, Event, OnOutput
from quantkit.runtime.kv import KVSpec, available_bytes
from quantkit.runtime.loop import StepLoop
from quantkit.runtime.model import Model
from quantkit.runtime.request import GenerationError, Request, RequestError, SamplingParams
from quantkit.runtime.runner import MakeRunner, ModelRunner

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineStats:
    """The engine at one moment, and totals since it was made.

    Attributes:
        running: requests in the current step.
        waiting: requests that have not started, or lost their blocks.
        free_blocks, total_blocks: of the cache.
        steps, step_tokens: steps done, and tokens computed in them.
        prompt_tokens, cached_tokens: of all prompts started; from the prefix cache.
        output_tokens: tokens delivered.
        preemptions: how often a request lost its blocks.
        finished: how many requests ended for each reason: stop, length, abort, error.
    """

    running: int
    waiting: int
    free_blocks: int
    total_blocks: int
    steps: int
    step_tokens: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    finished: Mapping[str, int]


class Engine:
    """Continuous batching over one model.

    Attributes:
        max_model_len: most tokens of a request, prompt and output together: the asked length,
            or less where the cache cannot hold more.
        config, tokenizer: of the model.

    Args:
        model: the decoder.
        tokenizer: its tokenizer.
        max_num_seqs: most requests that run at once; others wait.
        max_model_len: None takes what the model was made for, or less if memory is short.
        num_blocks: blocks of the cache; None takes what ``max_num_seqs`` requests of full length
            need, and at most a fixed share of the available memory.
        block_size: tokens in a block.
        max_num_batched_tokens: most tokens in a step; long prompts are computed in such pieces.
        prefix_cache: keep computed blocks and find them again by their tokens.
        make_runner: makes what computes the steps.

    Raises:
        UsageError: a size cannot be meant.
        ResourceError: the cache does not fit into memory.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        *,
        max_num_seqs: int = 16,
        max_model_len: int | None = None,
        num_blocks: int | None = None,
        block_size: int = 16,
        max_num_batched_tokens: int = 512,
        prefix_cache: bool = True,
        make_runner: MakeRunner = ModelRunner,
    ) -> None:
        for name, value in (
            ("max_num_seqs", max_num_seqs),
            ("block_size", block_size),
            ("num_blocks", num_blocks),
            ("max_num_batched_tokens", max_num_batched_tokens),
        ):
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}, expected at least 1")
        if max_model_len is not None and max_model_len < 2:
            raise UsageError(f"max_model_len is {max_model_len}, expected at least 2")
        config = model.config
        length = config.max_positions if max_model_len is None else max_model_len
        if length > config.max_positions:
            raise UsageError(
                f"max_model_len is {length}, but the model has {config.max_positions} positions"
            )
        if num_blocks is None:
            num_blocks = _default_blocks(
                KVSpec.of(config, block_size, model.dtype, model.device),
                max_num_seqs,
                length,
                must_hold=2 if max_model_len is None else max_model_len,
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_model_len = min(length, num_blocks * block_size)
        if self.max_model_len < length:
            log.warning(
                "the cache holds %d tokens (%d blocks of %d), so requests end at %d tokens, not %d",
                num_blocks * block_size, num_blocks, block_size, self.max_model_len, length,
            )  # fmt: skip
        self.config: ModelConfig = config
        self.tokenizer = tokenizer
        self._eos = frozenset(i for i in tokenizer.eos_ids if i < config.vocab_size)
        self._loop = StepLoop(
            make_runner(model, num_blocks, block_size),
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max(max_num_batched_tokens, max_num_seqs),
            prefix_cache=prefix_cache,
        )
        self._delivery = Delivery(tokenizer.backend, on_end=self.abort)
        self._wake = threading.Condition()
        self._inbox: list[Request | str] = []  # new requests, and ids to abort
        self._is_stopping = False
        self._outbox: queue.SimpleQueue[list[Event] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run_steps, name="quantkit-steps", daemon=True),
            threading.Thread(target=self._run_delivery, name="quantkit-delivery", daemon=True),
        ]

    @property
    def is_running(self) -> bool:
        """Whether both threads are alive."""
        return all(thread.is_alive() for thread in self._threads)

    def start(self) -> None:
        """Start to compute. Requests may be submitted before."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Abort what is unfinished, deliver what is due, and end. Waits for the current step."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        for thread in self._threads:
            if thread.ident is None:
                thread.start()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def submit(self, prompt_ids: Sequence[int], params: SamplingParams, on_output: OnOutput) -> str:
        """Queue a request.

        Args:
            prompt_ids: token ids of the prompt.
            params: how to continue it. ``max_tokens`` is cut to what the context holds.
            on_output: called with each output, on the delivery thread and perhaps before this
                returns. It must not block, or all outputs wait.

        Returns:
            The id of the request.

        Raises:
            RequestError: the prompt can never be continued, or an id is not in the vocabulary.
            GenerationError: the engine has stopped.
        """
        ids = self._check_prompt(prompt_ids)
        params.check_vocab(self.config.vocab_size)
        end = self.max_model_len
        if params.max_tokens is not None:
            end = min(end, len(ids) + params.max_tokens)
        eos = frozenset(params.stop_token_ids)
        request = Request(
            secrets.token_hex(12),
            ids,
            params,
            seed=secrets.randbits(64) if params.seed is None else params.seed,
            eos=eos if params.ignore_eos else eos | self._eos,
            end=end,
        )
        with self._wake:
            if self._is_stopping:
                raise GenerationError("the engine has stopped")
            self._delivery.open(request, on_output)
            self._inbox.append(request)
            self._wake.notify()
        return request.id

    def abort(self, request_id: str) -> None:
        """Drop a request within one step, whatever its state; unknown ids are ignored."""
        with self._wake:
            self._inbox.append(request_id)
            self._wake.notify()

    def stats(self) -> EngineStats:
        """Counts as they stand."""
        loop, delivery = self._loop, self._delivery
        scheduler = loop.scheduler
        with self._wake:
            arriving = sum(isinstance(command, Request) for command in self._inbox)
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + arriving,
            free_blocks=scheduler.pool.num_free,
            total_blocks=self.num_blocks,
            steps=loop.num_steps,
            step_tokens=loop.num_tokens,
            prompt_tokens=loop.num_prompt_tokens,
            cached_tokens=loop.num_cached_tokens,
            output_tokens=delivery.num_output_tokens,
            preemptions=loop.num_preemptions,
            finished=dict(delivery.finished),
        )

    def _check_prompt(self, prompt_ids: Sequence[int]) -> list[int]:
        ids = list(prompt_ids)
        vocab = self.config.vocab_size
        if not ids:
            raise RequestError("the prompt has no tokens", field="prompt")
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab:
                raise RequestError(
                    f"prompt: {token!r} is not a token id of the vocabulary of {vocab}",
                    field="prompt",
                )
        if len(ids) >= self.max_model_len:
            pool = self.num_blocks * self.block_size
            held = "cache" if pool == self.max_model_len else "context"
            raise RequestError(
                f"the prompt has {len(ids)} tokens, but the {held} holds {self.max_model_len}, "
                "the answer included",
                field="prompt",
                hint="shorten the prompt, or start with a larger max_model_len or num_blocks",
            )
        return ids

    def _run_steps(self) -> None:
        while True:
            events: list[Event] = []
            with self._wake:
                while not (self._inbox or self._loop.has_work or self._is_stopping):
                    self._wake.wait()
                for command in self._inbox:
                    if isinstance(command, Request):
                        self._loop.add(command)
                    else:
                        events += self._loop.abort(command)
                self._inbox.clear()
                is_stopping = self._is_stopping
            if is_stopping:
                self._outbox.put(events + self._loop.abort_all())
                self._outbox.put(None)
                return
            if self._loop.has_work:
                events += self._loop.step()
            if events:
                self._outbox.put(events)

    def _run_delivery(self) -> None:
        while (events := self._outbox.get()) is not None:
            for event in events:
                self._delivery.handle(event)


def _default_blocks(spec: KVSpec, max_num_seqs: int, length: int, must_hold: int) -> int:
    """Blocks for ``max_num_seqs`` requests of full length, or as many as memory allows.

    Raises:
        ResourceError: not even ``must_hold`` tokens fit.
    """
    wanted = max_num_seqs * -(-length // spec.block_size)
    per_block = spec.block_size * spec.bytes_per_token
    available = available_bytes(spec.device)
    blocks = min(wanted, available // per_block - 1)
    if blocks * spec.block_size < must_hold:
        need = -(-must_hold // spec.block_size) * per_block
        raise ResourceError(
            f"the cache for {must_hold} tokens takes {need / 2**20:.0f} MiB, but only "
            f"{available / 2**20:.0f} MiB are to be had",
            hint="lower max_model_len, or free memory",
        )
    return blocks
