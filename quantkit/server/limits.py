"""What one server takes on: bytes of a body, and sequences running and waiting."""

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quantkit.server.errors import ApiError

MAX_BODY_BYTES = 16 * 1024 * 1024
_RATE_WINDOW = 32


class BodyLimit:
    """Middleware that answers 413 to a longer body, announced or sent."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"")
        if announced.isdigit() and int(announced) > self.max_bytes:
            error = ApiError(413, self._reason(), code="request_too_large")
            await error.response()(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.max_bytes:
                raise HTTPException(413, self._reason())
            return message

        await self.app(scope, counted, send)

    def _reason(self) -> str:
        return f"the body is longer than {self.max_bytes} bytes"


class Admission:
    """Counts the sequences in the house: those that run and a bounded number that wait.

    A sequence is one prompt and one answer; ``n`` and lists of prompts make several of one request.

    Args:
        max_running: sequences that the engine works on at once.
        max_waiting: further sequences that may wait.
    """

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self.capacity = max_running + max_waiting
        self.held = 0
        self._finished: deque[float] = deque(maxlen=_RATE_WINDOW)

    @contextmanager
    def slots(self, count: int, param: str) -> Iterator[None]:
        """Hold ``count`` places.

        Args:
            param: the field that asks for so many.

        Raises:
            ApiError: 400 when that many can never fit, 429 when they do not fit now.
        """
        if count > self.capacity:
            raise ApiError(
                400,
                f"the request asks for {count} sequences, the server takes {self.capacity}",
                param=param,
                code="too_many_sequences",
            )
        if self.held + count > self.capacity:
            raise ApiError(
                429,
                f"the queue is full: {self.held} sequences are running or waiting",
                code="queue_full",
                headers={"Retry-After": str(self.retry_after(count))},
            )
        self.held += count
        try:
            yield
        finally:
            self.held -= count
            self._finished.extend([time.monotonic()] * count)

    def retry_after(self, count: int) -> int:
        """Seconds until ``count`` places are free, from the pace of the last finished sequences."""
        if len(self._finished) < 2:
            return 1
        seconds = (time.monotonic() - self._finished[0]) * count / len(self._finished)
        return min(max(math.ceil(seconds), 1), 60)
