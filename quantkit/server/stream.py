"""Server-sent events, and the watch for clients that go away."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quantkit.server.errors import ApiError

PING_SECONDS = 15.0
T = TypeVar("T")
# Line ends to str.splitlines and so to many clients, though not to the standard.
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


class ClientGone(Exception):
    """The client closed the connection before it had its answer."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do the work, and cancel it as soon as the client closes the connection.

    Raises:
        ClientGone: the client closed the connection.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.wait({working, watching})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """An answer of events, ended by ``[DONE]``, or by one event with the error that ended it.

    Args:
        events: the events; None stands for silence and becomes a comment.
        held: what is released at the end, however it comes: the generation and its places.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[dict[str, Any] | None], held: ExitStack, *, request_id: str
    ) -> None:
        self.status_code = 200
        self.background = None
        # The second header tells nginx to pass events on at once.
        self.init_headers(
            {
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
                "X-Request-Id": request_id,
            }
        )
        del self.headers["content-length"]
        self._events = events
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held, suppress(ClientGone):
            await unless_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        try:
            async for event in self._events:
                await _send_bytes(send, b": ping\n\n" if event is None else _event(event))
            await _send_bytes(send, b"data: [DONE]\n\n")
        except ApiError as error:
            await _send_bytes(send, _event(error.body()))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_bytes(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _event(document: dict[str, Any]) -> bytes:
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"data: {text.translate(_LINE_ENDS)}\n\n".encode()
