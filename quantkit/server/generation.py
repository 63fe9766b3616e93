"""The sequences of one HTTP request, from submission to their last output."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from quantkit.runtime.request import Output, SamplingParams
from quantkit.server.errors import ApiError


class Engine(Protocol):
    """What the server asks of the engine."""

    def submit(
        self, prompt_ids: Sequence[int], params: SamplingParams, on_output: Callable[[Output], None]
    ) -> str: ...
    def abort(self, request_id: str) -> None: ...
    def stats(self) -> Any: ...
    @property
    def is_running(self) -> bool: ...


@dataclass(frozen=True)
class Job:
    """One sequence to generate.

    Attributes:
        choice: index among the answers to one prompt; the prompt counts once, with choice 0.
    """

    prompt_ids: Sequence[int]
    params: SamplingParams
    choice: int


class Generation:
    """A context: entering submits every sequence, leaving aborts those that have not ended.

    Outputs arrive on the engine's thread and are handed to the event loop that entered.
    """

    def __init__(self, engine: Engine, jobs: Sequence[Job]) -> None:
        self._engine = engine
        self._jobs = jobs
        self._queue: asyncio.Queue[tuple[int, Output] | ApiError] = asyncio.Queue()
        self._running: dict[int, str] = {}
        self._cached = [0] * len(jobs)
        self._generated = [0] * len(jobs)

    def __enter__(self) -> Self:
        """Submit.

        Raises:
            RequestError: a sequence can never be answered as asked; none is left running.
        """
        loop = asyncio.get_running_loop()
        try:
            for index, job in enumerate(self._jobs):
                hand_over = _hand_over(loop, self._queue, index)
                request_id = self._engine.submit(job.prompt_ids, job.params, hand_over)
                self._running[index] = request_id
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        while self._running:
            self._engine.abort(self._running.popitem()[1])

    def fail(self, error: ApiError) -> None:
        """End the request with an error; called on the event loop."""
        self._queue.put_nowait(error)

    async def outputs(
        self, silence: float | None = None
    ) -> AsyncIterator[tuple[int, Output] | None]:
        """Yield (index of the sequence, output) until every sequence has ended.

        Args:
            silence: seconds without an output after which None is yielded.

        Raises:
            ApiError: a sequence failed inside the engine, or ``fail`` was called.
        """
        while self._running:
            try:
                async with asyncio.timeout(silence):
                    item = await self._queue.get()
            except TimeoutError:
                yield None
                continue
            if isinstance(item, ApiError):
                raise item
            index, output = item
            self._cached[index] = output.num_cached_tokens
            self._generated[index] = output.num_output_tokens
            if output.is_last:
                del self._running[index]
            if output.error is not None:
                raise ApiError(500, output.error, code="generation_failed")
            if output.finish_reason == "abort":
                raise ApiError(503, "the server ended this generation", code="aborted")
            yield index, output

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage: each prompt once, every generated token."""
        firsts = [index for index, job in enumerate(self._jobs) if job.choice == 0]
        prompt = sum(len(self._jobs[index].prompt_ids) for index in firsts)
        generated = sum(self._generated)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached[i] for i in firsts)},
        }


def _hand_over(
    loop: asyncio.AbstractEventLoop,
    queue: "asyncio.Queue[tuple[int, Output] | ApiError]",
    index: int,
) -> Callable[[Output], None]:
    def on_output(output: Output) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody listens any more
            loop.call_soon_threadsafe(queue.put_nowait, (index, output))

    return on_output
