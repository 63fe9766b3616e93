"""The runtime: one engine that runs every file quantkit reads.

Names are loaded when they are used, so that the parts without tensors do not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantkit.runtime.api import LLM as LLM
    from quantkit.runtime.api import Completion as Completion
    from quantkit.runtime.api import load as load
    from quantkit.runtime.engine import Engine as Engine
    from quantkit.runtime.engine import EngineStats as EngineStats
    from quantkit.runtime.request import GenerationError as GenerationError
    from quantkit.runtime.request import Output as Output
    from quantkit.runtime.request import RequestError as RequestError
    from quantkit.runtime.request import SamplingParams as SamplingParams
    from quantkit.runtime.request import TokenLogprob as TokenLogprob

_PUBLIC = {
    "LLM": "api",
    "Completion": "api",
    "Engine": "engine",
    "EngineStats": "engine",
    "GenerationError": "request",
    "Output": "request",
    "RequestError": "request",
    "SamplingParams": "request",
    "TokenLogprob": "request",
    "load": "api",
}

__all__ = [
    "LLM",
    "Completion",
    "Engine",
    "EngineStats",
    "GenerationError",
    "Output",
    "RequestError",
    "SamplingParams",
    "TokenLogprob",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
