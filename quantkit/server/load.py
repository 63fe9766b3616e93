"""From what a person calls a model to a running engine with its tokenizer and chat template."""

import os
from collections.abc import Callable
from pathlib import Path

from quantkit.formats import open_model
from quantkit.runtime import load
from quantkit.server.app import make_service
from quantkit.server.sampling import SamplingDefaults
from quantkit.server.state import Service


def load_service(
    model: str | Path,
    *,
    served_model_name: str | None,
    max_num_seqs: int,
    max_model_len: int | None,
    chat_template: str | None,
) -> tuple[Service, Callable[[], None]]:
    """Load a model and start its engine.

    Returns:
        The service, and what stops its engine.

    Raises:
        QuantkitError: as ``quantkit.runtime.load``; and ModelError when the chat template has a
            syntax error or generation_config.json is damaged.
    """
    checkpoint = open_model(model)
    vocab_size = checkpoint.require_model().vocab_size
    defaults = SamplingDefaults.from_companions(checkpoint.companion_reader())
    llm = load(checkpoint.path, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
    try:
        service = make_service(
            llm.engine,
            llm.tokenizer,
            names=model_names(model, served_model_name),
            max_model_len=llm.engine.max_model_len,
            vocab_size=vocab_size,
            chat_template=chat_template,
            defaults=defaults,
        )
    except BaseException:
        llm.close()
        raise
    return service, llm.close


def model_names(model: str | Path, served: str | None) -> tuple[str, ...]:
    """What requests may call the model: the served name, then ``model`` as it was given.

    A hub id serves under itself, a folder or file under its last part.
    """
    given = os.fspath(model)
    name = served or (Path(given).resolve().name if os.path.exists(given) else given)
    return tuple(dict.fromkeys((name, given)))
