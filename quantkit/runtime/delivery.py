"""Delivery: from events of the step loop to outputs for clients. All text work happens here.

It runs on one thread, beside the step loop. It has the last word on where a text ends: a stop
string may complete while the loop is already a step further, and what came after it is dropped.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import tokenizers

from quantkit.runtime.request import FinishReason, Output, Request, TokenLogprob
from quantkit.runtime.text.detokenize import Detokenizer, special_ids
from quantkit.runtime.text.stops import StopMatcher

log = logging.getLogger(__name__)

OnOutput = Callable[[Output], None]


@dataclass(frozen=True, eq=False)
class Event:
    """What one step did to one request: a new token, an end, or both.

    Attributes:
        token_id: the new token, if any.
        finish: why the loop has dropped the request, None while it goes on.
        error: one line, when it failed.
    """

    request: Request
    token_id: int | None = None
    logprob: TokenLogprob | None = None
    finish: FinishReason | None = None
    error: str | None = None


class Delivery:
    """The open requests and their texts.

    Attributes:
        finished: how many requests ended for each reason, "error" included.
        num_output_tokens: tokens delivered.

    Args:
        backend: the tokenizer.
        on_end: called with the request id when a text has ended here while the loop goes on.
    """

    def __init__(self, backend: tokenizers.Tokenizer, on_end: Callable[[str], None]) -> None:
        self.finished: Counter[str] = Counter()
        self.num_output_tokens = 0
        self._backend = backend
        self._special = special_ids(backend)
        self._on_end = on_end
        self._open: dict[str, _Text] = {}

    def open(self, request: Request, on_output: OnOutput) -> None:
        """Expect events of a request."""
        self._open[request.id] = _Text(request, on_output, self._backend, self._special)

    def handle(self, event: Event) -> None:
        """Turn an event into an output and hand it to the client."""
        text = self._open.get(event.request.id)
        if text is None:
            return  # ended here already
        try:
            output = text.read(event)
        except Exception as error:  # whatever one text does, the others go on
            log.exception("request %s: text failed", event.request.id)
            output = text.output(error=f"text of the request failed: {type(error).__name__}")
        self.num_output_tokens += len(output.token_ids)
        if output.is_last:
            del self._open[event.request.id]
            self.finished[output.finish_reason or "error"] += 1
        try:
            text.on_output(output)
        except Exception:  # a client's fault is not the engine's
            log.exception("request %s: on_output failed", event.request.id)
            if self._open.pop(event.request.id, None) is not None:
                self.finished["abort"] += 1
        if event.finish is None and event.error is None and event.request.id not in self._open:
            self._on_end(event.request.id)


class _Text:
    """Text of one request so far."""

    def __init__(
        self,
        request: Request,
        on_output: OnOutput,
        backend: tokenizers.Tokenizer,
        special: frozenset[int],
    ) -> None:
        self.on_output = on_output
        self._request = request
        self._num_output = 0
        self._detokenizer = Detokenizer(backend, special, request.token_ids)
        self._stops = StopMatcher(request.params.stop)

    def read(self, event: Event) -> Output:
        """The output that follows from an event."""
        if event.token_id is None:
            return self.output(finish_reason=event.finish, error=event.error)
        self._num_output += 1
        params = self._request.params
        finish, stop_reason = event.finish, None
        if finish == "stop":  # the token that ends a text is not part of it
            stop_reason = event.token_id if event.token_id in params.stop_token_ids else None
            new = self._detokenizer.flush()
        else:
            new = self._detokenizer.push(event.token_id)
            new += self._detokenizer.flush() if finish else ""
        text, stopped_by = new, None
        if self._num_output >= params.min_tokens:
            text, stopped_by = self._stops.push(new)
        if stopped_by is not None:
            finish = "stop"
        elif finish:
            text += self._stops.flush()
        return self.output(
            text=text,
            token_ids=(event.token_id,),
            logprobs=None if event.logprob is None else (event.logprob,),
            finish_reason=finish,
            stop_reason=stop_reason if stopped_by is None else stopped_by,
        )

    def output(
        self,
        *,
        text: str = "",
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] | None = None,
        finish_reason: FinishReason | None = None,
        stop_reason: str | int | None = None,
        error: str | None = None,
    ) -> Output:
        """An output with the counts as they stand."""
        return Output(
            request_id=self._request.id,
            text=text,
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            num_prompt_tokens=self._request.num_prompt,
            num_cached_tokens=self._request.num_cached or 0,
            num_output_tokens=self._num_output,
            error=error,
        )
