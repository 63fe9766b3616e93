"""quantkit: quantize, prove and serve language models.

Importing this package does not import torch; the public functions load what they need when called.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from quantkit.eval import evaluate as evaluate
    from quantkit.pipeline import quantize as quantize
    from quantkit.runtime import load as load
    from quantkit.server import serve as serve

_PUBLIC = {
    "quantize": "quantkit.pipeline",
    "evaluate": "quantkit.eval",
    "load": "quantkit.runtime",
    "serve": "quantkit.server",
}

__all__ = ["__version__", "evaluate", "load", "quantize", "serve"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
