"""Runs ``serve`` as a program, with an engine that needs no model and no torch.

The argument is a JSON object: ``load_seconds``, ``says``, ``times``, ``pace`` and options.
It prints the address when it is ready, and ends with the exit code that a command line would give.
"""

import json
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from quantkit.core.tokenizer import Tokenizer
from quantkit.errors import ModelError, QuantkitError
from quantkit.server.app import make_service
from quantkit.server.launch import serve
from quantkit.server.state import Service
from tests.helpers.fake_engine import FakeEngine


def byte_tokenizer() -> Tokenizer:
    vocab = {char: place for place, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, settings={}, template="{{ messages[0].content }}")


def main() -> int:
    options: dict[str, Any] = json.loads(sys.argv[1])
    load_seconds = options.pop("load_seconds", 0.0)
    script = [options.pop("says", "x")] * options.pop("times", 2)
    pace = options.pop("pace", 0.0)

    def load_service(model: str, **unused: Any) -> tuple[Service, Callable[[], None]]:
        time.sleep(load_seconds)
        if model == "broken":
            raise ModelError("broken: no such model")
        fake = FakeEngine(script, pace=pace)
        service = make_service(
            fake,
            byte_tokenizer(),
            names=("fake",),
            max_model_len=100_000,
            vocab_size=None,
            chat_template=None,
            defaults=None,
        )
        return service, fake.stop

    module = ModuleType("quantkit.server.load")
    module.load_service = load_service  # type: ignore[attr-defined]
    sys.modules["quantkit.server.load"] = module
    try:
        serve(
            options.pop("model", "fake"),
            ready=lambda address: print(address, flush=True),
            **options,
        )
    except QuantkitError as error:
        print(error.message, file=sys.stderr)
        return error.exit_code
    assert "torch" not in sys.modules
    return 0


if __name__ == "__main__":
    sys.exit(main())
