"""Progress: how library code tells a person, or nobody, how far it is."""

from typing import Protocol


class Progress(Protocol):
    """One task at a time: ``start``, ``advance`` until ``total`` units are done, then ``done``.

    A task that fails is simply not continued; the next ``start`` begins afresh.
    """

    def start(self, label: str, total: int, unit: str) -> None:
        """Begin a task.

        Args:
            label: what is being done, "quantize".
            total: number of units, 0 when it is not known.
            unit: name of one unit, "block".
        """

    def advance(self, n: int = 1, note: str = "") -> None:
        """Count ``n`` more units as finished; ``note`` says something about the last of them."""

    def done(self) -> None:
        """End the task."""

    def log(self, line: str) -> None:
        """Say one line, within a task or outside."""


class SilentProgress:
    """A Progress that says nothing."""

    def start(self, label: str, total: int, unit: str) -> None:
        """Ignore it."""

    def advance(self, n: int = 1, note: str = "") -> None:
        """Ignore it."""

    def done(self) -> None:
        """Ignore it."""

    def log(self, line: str) -> None:
        """Ignore it."""
