"""The Python interface: load a model, then generate, stream or chat, as the server would answer."""

import queue
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch

from quantkit.core.checkpoint import Checkpoint
from quantkit.core.tokenizer import Tokenizer
from quantkit.errors import ResourceError, UsageError
from quantkit.formats import open_model
from quantkit.runtime.engine import Engine
from quantkit.runtime.model import load_model
from quantkit.runtime.request import (
    FinishReason,
    GenerationError,
    Output,
    SamplingParams,
    TokenLogprob,
)

DType = Literal["auto", "float32", "bfloat16", "float16"]

Prompt = str | Sequence[int]
"""Text, or token ids."""

_DEFAULT = SamplingParams()


@dataclass(frozen=True)
class Completion:
    """The answer to one prompt.

    Attributes:
        text: without the prompt, the stop string and special tokens.
        token_ids: every generated token, a final end-of-text token included.
        finish_reason: stop, length or abort.
        stop_reason: the stop string or stop token id that ended it.
        logprobs: one for each token, when asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    logprobs: tuple[TokenLogprob, ...] | None
    num_prompt_tokens: int
    num_cached_tokens: int

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens."""
        return len(self.token_ids)


class LLM:
    """A model that is ready to generate. Close it, or use it in a ``with`` statement.

    Args:
        engine: a started engine.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tokenizer: Tokenizer = engine.tokenizer

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] = _DEFAULT,
    ) -> list[Completion]:
        """Continue prompts, all of them at once, and return the answers in their order.

        Args:
            prompts: texts or lists of token ids.
            params: for all of them, or one for each.

        Raises:
            RequestError: a prompt can never be continued as asked.
            GenerationError: the engine failed on one of them.
        """
        if isinstance(prompts, str):
            raise UsageError(
                "generate takes a list of prompts", hint="write generate([prompt], ...)"
            )
        every = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(every) != len(prompts):
            raise UsageError(f"{len(prompts)} prompts, but {len(every)} params")
        ids = [self._encode(prompt) for prompt in prompts]
        outbox: queue.SimpleQueue[Output] = queue.SimpleQueue()
        submitted: list[str] = []
        try:
            for prompt, one in zip(ids, every, strict=True):
                submitted.append(self.engine.submit(prompt, one, outbox.put))
            outputs = _collect(outbox, submitted)
        finally:  # finished ones are not harmed
            for request_id in submitted:
                self.engine.abort(request_id)
        return [_join(outputs[request_id]) for request_id in submitted]

    def stream(self, prompt: Prompt, params: SamplingParams = _DEFAULT) -> Iterator[Output]:
        """Continue one prompt and yield its outputs as they come; leaving early aborts it.

        Raises:
            RequestError: the prompt can never be continued as asked.
            GenerationError: the engine failed.
        """
        return self._stream(self._encode(prompt), params)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams = _DEFAULT
    ) -> Completion:
        """Answer a conversation.

        Raises:
            DataError: the model has no chat template, or it refused the messages.
            RequestError: the conversation is too long.
            GenerationError: the engine failed.
        """
        return self.generate([self._encode_chat(messages)], params)[0]

    def stream_chat(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams = _DEFAULT
    ) -> Iterator[Output]:
        """Answer a conversation and yield outputs as they come; see ``chat`` and ``stream``."""
        return self._stream(self._encode_chat(messages), params)

    def close(self) -> None:
        """Abort what is unfinished and end the engine's threads."""
        self.engine.stop()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _encode(self, prompt: Prompt) -> Sequence[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt

    def _encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return self.tokenizer.encode_chat(messages, add_generation_prompt=True)

    def _stream(self, prompt_ids: Sequence[int], params: SamplingParams) -> Iterator[Output]:
        outbox: queue.SimpleQueue[Output] = queue.SimpleQueue()
        request_id = self.engine.submit(prompt_ids, params, outbox.put)
        return self._outputs(request_id, outbox)

    def _outputs(self, request_id: str, outbox: queue.SimpleQueue[Output]) -> Iterator[Output]:
        try:
            while True:
                output = _checked(outbox.get())
                yield output
                if output.is_last:
                    return
        finally:
            self.engine.abort(request_id)


def load(
    model: str | Path,
    *,
    revision: str | None = None,
    device: str = "auto",
    dtype: DType = "auto",
    max_num_seqs: int = 16,
    max_model_len: int | None = None,
    num_blocks: int | None = None,
    block_size: int = 16,
    max_num_batched_tokens: int = 512,
    prefix_cache: bool = True,
) -> LLM:
    """Load a model and start an engine on it.

    Args:
        model: folder, GGUF file, or hub id.
        revision: of a hub id.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: type of activations and cache; ``auto`` is float32 on the CPU and the type of
            the weights on a GPU.
        max_num_seqs, max_model_len, num_blocks, block_size, max_num_batched_tokens, prefix_cache:
            see ``Engine``.

    Raises:
        ModelError: the model is damaged or not supported.
        UsageError: an option cannot be meant.
        ResourceError: the device is missing, or memory does not suffice.
    """
    place = _device(device)
    checkpoint = open_model(model, revision=revision)
    engine = Engine(
        load_model(checkpoint, dtype=_dtype(dtype, place, checkpoint), device=str(place)),
        Tokenizer.from_checkpoint(checkpoint),
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_batched_tokens=max_num_batched_tokens,
        prefix_cache=prefix_cache,
    )
    engine.start()
    return LLM(engine)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(
            f"unknown device {name!r}", hint="take auto, cpu, cuda or cuda:N"
        ) from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ResourceError(
            f"there is no device {name!r} on this machine", hint="take --device cpu"
        )
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device {name!r} is not supported", hint="take auto, cpu, cuda or cuda:N")
    return device


def _dtype(name: str, device: torch.device, checkpoint: Checkpoint) -> torch.dtype:
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name in known:
        return known[name]
    if name != "auto":
        raise UsageError(f"unknown dtype {name!r}", hint=f"take auto, {', '.join(known)}")
    if device.type == "cpu":
        return torch.float32
    stored = {info.dtype for info in checkpoint.tensors.values() if info.scheme is None}
    return next(
        (kind for kind in (torch.bfloat16, torch.float16) if kind in stored), torch.bfloat16
    )


def _collect(
    outbox: queue.SimpleQueue[Output], request_ids: Sequence[str]
) -> dict[str, list[Output]]:
    """All outputs of some requests, by request."""
    outputs: dict[str, list[Output]] = {request_id: [] for request_id in request_ids}
    unfinished = len(outputs)
    while unfinished:
        output = _checked(outbox.get())
        outputs[output.request_id].append(output)
        unfinished -= output.is_last
    return outputs


def _checked(output: Output) -> Output:
    if output.error is not None:
        raise GenerationError(f"generation failed: {output.error}")
    return output


def _join(outputs: Sequence[Output]) -> Completion:
    last = outputs[-1]
    assert last.finish_reason is not None
    logprobs = [one for output in outputs for one in output.logprobs or ()]
    return Completion(
        text="".join(output.text for output in outputs),
        token_ids=tuple(token for output in outputs for token in output.token_ids),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        logprobs=tuple(logprobs) if outputs[0].logprobs is not None else None,
        num_prompt_tokens=last.num_prompt_tokens,
        num_cached_tokens=last.num_cached_tokens,
    )
