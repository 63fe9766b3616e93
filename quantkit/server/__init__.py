"""The OpenAI-compatible server.

The names load on first use: the template process imports this package and must stay small.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantkit.server.app import create_app as create_app
    from quantkit.server.launch import serve as serve

_PUBLIC = {"create_app": "quantkit.server.app", "serve": "quantkit.server.launch"}

__all__ = ["create_app", "serve"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
