"""Registry: names to lazy creators, so that choosing one part never imports another."""

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from quantkit.errors import QuantkitError, UsageError

T = TypeVar("T")


class Registry(Generic[T]):
    """Parts of one kind by name; each is made on first use and kept.

    Args:
        kind: what the parts are, for messages: "method", "format".
        creators: name -> function that imports and returns the part.
        error: what an unknown name raises.
    """

    def __init__(
        self,
        kind: str,
        creators: dict[str, Callable[[], T]],
        *,
        error: type[QuantkitError] = UsageError,
    ) -> None:
        self.kind = kind
        self._creators = creators
        self._made: dict[str, T] = {}
        self._error = error

    def get(self, name: str) -> T:
        """The part of that name.

        Raises:
            UsageError: (or the registry's own error class) no part has that name.
        """
        if name not in self._creators:
            raise self._error(
                f"unknown {self.kind} {name!r}", hint=suggest(name, self._creators, self.kind)
            )
        if name not in self._made:
            self._made[name] = self._creators[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._creators)


def suggest(name: str, known: Iterable[str], kind: str) -> str:
    """Hint for a misspelt name: the nearest known ones, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"known {kind}s: {', '.join(known)}"
