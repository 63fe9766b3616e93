"""A running engine on a fake model, and a client that collects the outputs of one request."""

import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from quantkit.runtime.engine import Engine
from quantkit.runtime.request import Output, SamplingParams
from tests.helpers.fake_backend import FakeModel, fake_engine


@contextmanager
def running(model: FakeModel | None = None, **options: Any) -> Iterator[Engine]:
    engine = fake_engine(model, **options)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


class Client:
    """Collects the outputs of one request."""

    def __init__(self, engine: Engine, prompt: Sequence[int], params: SamplingParams) -> None:
        self.outputs: list[Output] = []
        self._box: queue.SimpleQueue[Output] = queue.SimpleQueue()
        self.id = engine.submit(prompt, params, self._box.put)

    def next(self) -> Output:
        self.outputs.append(self._box.get(timeout=60))
        return self.outputs[-1]

    def finish(self) -> "Client":
        while not self.next().is_last:
            pass
        assert self._box.empty()
        return self

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.outputs)

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    @property
    def last(self) -> Output:
        return self.outputs[-1]


def wait_idle(engine: Engine) -> None:
    """Wait until nothing runs."""
    deadline = time.monotonic() + 30
    while (stats := engine.stats()).running or stats.waiting:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    assert stats.free_blocks == stats.total_blocks
