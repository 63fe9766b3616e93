"""serve(): bind, load the model beside the running server, and stop in good order.

The first SIGINT or SIGTERM drains: new requests get 503, running ones may end within a time limit,
and ``serve`` returns. The second ends the process at once with exit code 130.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn

from quantkit.errors import EXIT_INTERRUPTED, ResourceError, UsageError
from quantkit.server.app import MAX_NUM_SEQS, MAX_QUEUE, build_app
from quantkit.server.render import read_template
from quantkit.server.state import ServerState, Service

Loaded = tuple[Service, Callable[[], None]]
log = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)
MAX_PORT = 65_535
_CLOSE_SECONDS = 1


def serve(
    model: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_keys: Sequence[str] = (),
    served_model_name: str | None = None,
    max_num_seqs: int = MAX_NUM_SEQS,
    max_model_len: int | None = None,
    chat_template: str | Path | None = None,
    shutdown_timeout: float = 10.0,
    max_queue: int = MAX_QUEUE,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve a model until a signal.

    Args:
        model: folder, GGUF file or hub id.
        port: 0 takes a free one.
        api_keys: when there are any, everything but /health needs one.
        served_model_name: the name that answers carry; by default the last part of ``model``.
            Requests may also use ``model`` itself.
        max_num_seqs, max_queue: sequences that run at once, and that wait before 429.
        max_model_len: tokens that a prompt and its answer may have together; by default what the
            model was made for, or less if memory is short.
        chat_template: Jinja text or a file of it, in place of the model's own.
        shutdown_timeout: seconds that running requests may take to end after the first signal.
        ready: called once with the address when the model is loaded.

    Raises:
        UsageError: a value that cannot be meant.
        ModelError: the model is damaged or not supported, or its chat template has a syntax error.
        ResourceError: the port is taken, or memory does not suffice.
    """
    for name, value, least in (
        ("max_num_seqs", max_num_seqs, 1),
        ("max_queue", max_queue, 0),
        ("shutdown_timeout", shutdown_timeout, 0),
        ("port", port, 0),
    ):
        if value < least:
            raise UsageError(f"{name} is {value}, expected at least {least}")
    if port > MAX_PORT:
        raise UsageError(f"port is {port}, expected at most {MAX_PORT}")
    if not all(api_keys):
        raise UsageError("an API key is empty", hint="leave --api-key out to serve without keys")
    template = read_template(chat_template)

    def load() -> Loaded:
        from quantkit.server.load import load_service  # imports torch, so off the event loop

        return load_service(
            model,
            served_model_name=served_model_name,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            chat_template=template,
        )

    with _bind(host, port) as listening:
        state = ServerState(max_num_seqs, max_queue)
        address = _address(host, listening)
        running = _Running(state, api_keys, shutdown_timeout)
        asyncio.run(running.run(listening, load, lambda: ready(address) if ready else None))


class _Running:
    """One run of the HTTP server."""

    def __init__(self, state: ServerState, api_keys: Sequence[str], timeout: float) -> None:
        self._state = state
        self._timeout = timeout
        self._failure: BaseException | None = None
        self._stop_engine: Callable[[], None] = lambda: None
        self._drain: asyncio.Task[None] | None = None
        self._server = _Server(
            uvicorn.Config(
                build_app(state, api_keys=api_keys),
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=_CLOSE_SECONDS,
            )
        )

    async def run(
        self, listening: socket.socket, load: Callable[[], Loaded], ready: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                loop.add_signal_handler(number, self._stop)
        loader = threading.Thread(
            target=self._load, args=(loop, load, ready), name="quantkit-load", daemon=True
        )
        loader.start()
        await self._server.serve(sockets=[listening])
        await asyncio.to_thread(self._stop_engine)
        if self._failure is not None:
            raise self._failure

    def _load(
        self,
        loop: asyncio.AbstractEventLoop,
        load: Callable[[], Loaded],
        ready: Callable[[], None],
    ) -> None:
        """On a thread of its own, so that /health answers meanwhile."""
        try:
            loaded = load()
            gc.freeze()  # no later collection, nor the one at exit, walks all that was imported
        except BaseException as error:  # raised again where serve() was called
            self._call(loop, self._fail, error)
        else:
            self._call(loop, self._open, loaded, ready)

    def _call(self, loop: asyncio.AbstractEventLoop, *call: object) -> None:
        with suppress(RuntimeError):  # the loop has closed: a signal came first
            loop.call_soon_threadsafe(*call)  # type: ignore[arg-type]

    def _open(self, loaded: Loaded, ready: Callable[[], None]) -> None:
        service, self._stop_engine = loaded
        self._state.loaded = service
        log.info("%s is ready, %s", service.name, service.defaults)
        ready()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._server.should_exit = True

    def _stop(self) -> None:
        if self._drain is not None:
            os._exit(EXIT_INTERRUPTED)
        self._drain = asyncio.ensure_future(self._stop_in_order())

    async def _stop_in_order(self) -> None:
        log.info("shutting down; a second signal ends the process at once")
        await self._state.drain(self._timeout)
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers, which would close the port before the drain."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bind(host: str, port: int) -> socket.socket:
    """A listening address.

    Raises:
        UsageError: the host or port cannot be meant.
        ResourceError: the port is taken or not allowed.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"cannot listen on {host} port {port}: {error}") from None
    # Named protocols matter: asyncio switches Nagle's delays off only where it reads TCP.
    family, kind, protocol, _, place = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen()
    except OSError as error:
        listening.close()
        raise ResourceError(
            f"cannot listen on {host} port {port}: {error.strerror}",
            hint="choose another --port, or stop the program that has this one",
        ) from None
    return listening


def _address(host: str, listening: socket.socket) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listening.getsockname()[1]}"
