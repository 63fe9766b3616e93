"""An engine without a model: it says what a script says, one piece a step, on a thread."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Self

from quantkit.runtime.request import FinishReason, Output, SamplingParams, TokenLogprob


@dataclass(frozen=True)
class Piece:
    """One step of a script: a token and the text that it sets free."""

    text: str
    token_id: int = 7
    logprob: float = -0.5
    top: tuple[tuple[int, float], ...] = ((7, -0.5), (8, -1.5))


@dataclass
class Submitted:
    """One request as the engine got it, and how far it came."""

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    on_output: Callable[[Output], None] = field(repr=False)
    said: int = 0
    is_over: bool = False
    was_aborted: bool = False


class FakeEngine:
    """Says the script to every request, or less where ``max_tokens`` is smaller.

    Args:
        script: what to say; strings are pieces with a token of their own.
        finish: why the script ends.
        pace: seconds between steps.
        error: ends each script instead of a finish reason.
        refuse: raised by ``submit`` from the second request on.
    """

    def __init__(
        self,
        script: Sequence[Piece | str],
        *,
        finish: FinishReason = "stop",
        pace: float = 0.0,
        error: str | None = None,
        refuse: Exception | None = None,
        num_cached: int = 0,
    ) -> None:
        self.script = [Piece(one) if isinstance(one, str) else one for one in script]
        self.finish: FinishReason = finish
        self.pace = pace
        self.error = error
        self.refuse = refuse
        self.num_cached = num_cached
        self.requests: list[Submitted] = []
        self.is_running = True
        self._wake = threading.Condition()
        self._ids = itertools.count()
        self._thread = threading.Thread(target=self._run, name="fake-engine")
        self._thread.start()

    def submit(
        self, prompt_ids: Sequence[int], params: SamplingParams, on_output: Callable[[Output], None]
    ) -> str:
        with self._wake:
            if self.refuse is not None and self.requests:
                raise self.refuse
            request = Submitted(f"r{next(self._ids)}", list(prompt_ids), params, on_output)
            self.requests.append(request)
            self._wake.notify()
        return request.request_id

    def abort(self, request_id: str) -> None:
        with self._wake:
            for request in self.requests:
                if request.request_id == request_id and not request.is_over:
                    request.is_over = request.was_aborted = True

    def stats(self) -> SimpleNamespace:
        tokens = {"prompt_tokens": 0, "cached_tokens": 0, "output_tokens": 0, "preemptions": 0}
        blocks = {"free_blocks": 1, "total_blocks": 1}
        return SimpleNamespace(
            running=len(self.running), waiting=0, finished={}, **tokens, **blocks
        )

    @property
    def running(self) -> list[Submitted]:
        """Requests that still get outputs."""
        return [request for request in self.requests if not request.is_over]

    def stop(self) -> None:
        with self._wake:
            self.is_running = False
            self._wake.notify()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.stop()

    def _run(self) -> None:
        while True:
            with self._wake:
                while self.is_running and not self.running:
                    self._wake.wait()
                if not self.is_running:
                    return
                outputs = [(request, self._step(request)) for request in self.running]
            for request, output in outputs:
                request.on_output(output)
            time.sleep(self.pace)

    def _step(self, request: Submitted) -> Output:
        piece = self.script[request.said]
        request.said += 1
        last: FinishReason | None = None
        if request.said == len(self.script):
            last = self.finish
        elif request.said == request.params.max_tokens:
            last = "length"
        request.is_over = last is not None
        failed = self.error is not None and last is not None
        wanted = request.params.logprobs
        logprob = TokenLogprob(piece.token_id, piece.logprob, piece.top[: wanted or 0])
        return Output(
            request.request_id,
            text=piece.text,
            token_ids=(piece.token_id,),
            logprobs=None if wanted is None else (logprob,),
            finish_reason=None if failed else last,
            num_prompt_tokens=len(request.prompt_ids),
            num_cached_tokens=self.num_cached,
            num_output_tokens=request.said,
            error=self.error if failed else None,
        )
