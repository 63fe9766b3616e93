"""What the routes share: the model that is served, the requests in flight, ready or draining."""

import asyncio
import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import quantkit
from quantkit.core.tokenizer import Tokenizer
from quantkit.server.errors import ApiError, unavailable
from quantkit.server.generation import Engine, Generation, Job
from quantkit.server.limits import Admission
from quantkit.server.render import Renderer
from quantkit.server.sampling import SamplingDefaults

_POLL_SECONDS = 0.02
_LAST_WORDS_SECONDS = 1.0


@dataclass(frozen=True)
class Service:
    """One loaded model.

    Attributes:
        names: what a request may call it; the first is the name that answers carry.
        renderer: its chat template, None when it has none.
        max_model_len: tokens that a prompt and its answer may have together.
        vocab_size: token ids are below it.
    """

    engine: Engine
    tokenizer: Tokenizer
    names: Sequence[str]
    renderer: Renderer | None
    max_model_len: int
    vocab_size: int
    defaults: SamplingDefaults
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def name(self) -> str:
        """The served name."""
        return self.names[0]

    @property
    def fingerprint(self) -> str:
        """Equal for equal model names and versions of quantkit."""
        text = f"{quantkit.__version__} {self.name} {self.max_model_len}"
        return "fp_" + hashlib.sha256(text.encode()).hexdigest()[:12]

    def check_name(self, model: str | None) -> None:
        """Check which model a request is for; one that names none gets the only one.

        Raises:
            ApiError: 404.
        """
        if model is not None and model not in self.names:
            raise ApiError(
                404,
                f"the model {model!r} does not exist; this server has {self.name!r}",
                param="model",
                code="model_not_found",
            )

    def card(self) -> dict[str, Any]:
        """The model as /v1/models lists it."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "quantkit",
            "root": self.names[-1],
            "max_model_len": self.max_model_len,
            "sampling_defaults": asdict(self.defaults),
        }


class ServerState:
    """Loading, ready, draining; and what is in flight.

    Args:
        max_num_seqs: sequences that the engine works on at once.
        max_queue: further sequences that may wait.
    """

    def __init__(self, max_num_seqs: int, max_queue: int) -> None:
        self.admission = Admission(max_num_seqs, max_queue)
        self.loaded: Service | None = None
        self.draining = False
        self._closed = False
        self._live: set[Generation] = set()

    def service(self) -> Service:
        """The model.

        Raises:
            ApiError: 503 before it is loaded and while the server drains.
        """
        if self.draining:
            raise unavailable("the server is shutting down", "shutting_down")
        if self.loaded is None:
            raise unavailable("the model is loading", "loading")
        if not self.loaded.engine.is_running:
            raise unavailable("the engine has stopped", "engine_stopped")
        return self.loaded

    @contextmanager
    def generation(self, service: Service, jobs: Sequence[Job]) -> Iterator[Generation]:
        """A running generation, which the end of a drain can reach."""
        if self._closed:
            raise unavailable("the server is shutting down", "shutting_down")
        with Generation(service.engine, jobs) as generation:
            self._live.add(generation)
            try:
                yield generation
            finally:
                self._live.discard(generation)

    async def drain(self, timeout: float) -> None:
        """Refuse new requests and let the running ones end; after ``timeout`` seconds fail them."""
        self.draining = True
        await self._wait_idle(timeout)
        self._closed = True
        for generation in self._live:
            generation.fail(unavailable("the server is shutting down", "shutting_down"))
        await self._wait_idle(_LAST_WORDS_SECONDS)

    async def _wait_idle(self, timeout: float) -> None:
        end = time.monotonic() + timeout
        while self.admission.held and time.monotonic() < end:
            await asyncio.sleep(_POLL_SECONDS)
