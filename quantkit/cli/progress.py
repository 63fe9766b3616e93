"""Progress for people: a bar with the time left on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    import rich.progress

INTERVAL_S = 2.0
"""Least seconds between two plain lines, so that a log of a thousand quick units stays short."""


class Speaker(Protocol):
    """Where lines go: the console."""

    def say(self, line: str) -> None:
        """Write one line of narration."""


class PlainProgress:
    """One line when a task begins, then one per unit, but at most one every two seconds."""

    def __init__(self, speaker: Speaker, clock: Callable[[], float] = time.monotonic) -> None:
        self._speaker = speaker
        self._clock = clock
        self._label = self._unit = ""
        self._total = self._count = self._said = 0
        self._began = self._last = 0.0

    def start(self, label: str, total: int, unit: str) -> None:
        """Begin a task."""
        self._label, self._unit, self._total = label, unit, total
        self._count = self._said = 0
        self._began = self._last = self._clock()
        amount = f": {total} {unit}{'' if total == 1 else 's'}" if total else ""
        self._speaker.say(f"{label}{amount}")

    def advance(self, n: int = 1, note: str = "") -> None:
        """Count units; say so when it is time, and always for the last one."""
        self._count += n
        now = self._clock()
        if self._count >= self._total > 0 or now - self._last >= INTERVAL_S:
            self._last, self._said = now, self._count
            self._speaker.say(self._line(now, note))

    def done(self) -> None:
        """End the task; a total that was not known is said now."""
        if self._said < self._count:
            self._speaker.say(self._line(self._clock(), ""))
            self._said = self._count

    def log(self, line: str) -> None:
        """Say one line."""
        self._speaker.say(line)

    def _line(self, now: float, note: str) -> str:
        elapsed = now - self._began
        of = f"/{self._total}" if self._total else ""
        line = f"{self._label}: {self._unit} {self._count}{of}"
        if note:
            line += f" ({note})"
        line += f" {clock_text(elapsed)} elapsed"
        if 0 < self._count < self._total:
            line += f", {clock_text(elapsed / self._count * (self._total - self._count))} left"
        return line


class BarProgress:
    """A bar on a terminal. ``done`` or ``close`` gives the line back to the terminal."""

    def __init__(self, stream: TextIO, *, color: bool, log: Callable[[str], None]) -> None:
        self._stream = stream
        self._color = color
        self._log = log
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None

    def start(self, label: str, total: int, unit: str) -> None:
        """Begin a task."""
        from rich import progress
        from rich.console import Console

        self.close()
        left = progress.TimeRemainingColumn()
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=30),
            progress.MofNCompleteColumn(),
            progress.TextColumn(f"{unit}s", markup=False),
            progress.TimeElapsedColumn(),
            progress.TextColumn("elapsed,"),
            left,
            progress.TextColumn("left"),
            progress.TextColumn("{task.fields[note]}", markup=False, style="dim"),
            console=Console(file=self._stream, no_color=not self._color, highlight=False),
            # One block of a large model takes minutes; the estimate must remember it.
            speed_estimate_period=3600,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task(label, total=total or None, note="")
        self._bar.start()

    def advance(self, n: int = 1, note: str = "") -> None:
        """Count units."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=n, note=note)

    def done(self) -> None:
        """End the task, its bar stays in the scrollback."""
        self.close()

    def log(self, line: str) -> None:
        """Say one line, above the bar while there is one."""
        if self._bar is None:
            self._log(line)
        else:
            from rich.text import Text

            self._bar.console.print(Text.from_ansi(line), soft_wrap=True)

    def close(self) -> None:
        """Give the terminal back, whatever state the task is in."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None


def clock_text(seconds: float) -> str:
    """Write seconds as ``0:07``, ``12:34`` or ``1:02:03``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
