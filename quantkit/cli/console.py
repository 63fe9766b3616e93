"""Console: data on standard output, everything said to people on standard error."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TextIO

from quantkit.cli.progress import BarProgress, PlainProgress
from quantkit.core.progress import Progress, SilentProgress
from quantkit.core.report import dumps

_RED, _YELLOW, _CYAN = "31", "33", "36"


class Console:
    """Where a command writes.

    A reader that goes away (``| head``) silences its stream and stops nothing: what the
    command does besides writing still counts.

    Attributes:
        json: standard output carries one JSON document and nothing else.
        quiet: no narration, only errors.
        is_open: whether anyone still reads standard output.
        transcript: gets every line of narration, for a log file.
    """

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        *,
        json: bool = False,
        quiet: bool = False,
        color: bool = True,
    ) -> None:
        self.json = json
        self.quiet = quiet
        self.is_open = True
        self.transcript: Callable[[str], None] = lambda line: None
        self._out, self._err = out, err
        self._color = color and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._bar: BarProgress | None = None

    # Standard output

    def data(self, text: str, *, end: str = "\n") -> None:
        """Write a piece of the result for people; nothing in JSON mode."""
        if not self.json:
            self._emit(text + end)

    def document(self, value: object) -> None:
        """Write the JSON document."""
        self._emit(dumps(value) + "\n")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Write a table: ruled on a terminal, aligned plain text elsewhere, nothing in JSON mode.

        A column is set to the right when every cell of it is a number or empty.
        """
        if self.json:
            return
        rows = [list(row) for row in rows]
        right = [
            all(isinstance(row[i], (int, float)) or row[i] in (None, "") for row in rows)
            for i in range(len(columns))
        ]
        cells = [[cell_text(cell) for cell in row] for row in rows]
        if self._out.isatty() and self._color:
            self._rich_table(columns, cells, right)
        else:
            self._emit(plain_table(columns, cells, right))

    # Standard error

    def say(self, line: str) -> None:
        """Narrate one line."""
        self.transcript(line)
        if not self.quiet:
            self.show(line)

    def warn(self, line: str) -> None:
        """Write one line of warning."""
        self.transcript(f"warning: {line}")
        if not self.quiet:
            self.show(f"{self._paint('warning:', _YELLOW)} {line}")

    def fail(self, message: str, hint: str | None) -> None:
        """Write the error line and the line that says what to do."""
        self.close()
        self.show(f"{self._paint('error:', _RED)} {message}")
        self.transcript(f"error: {message}")
        if hint:
            self.show(f"{self._paint('hint:', _CYAN)} {hint}")
            self.transcript(f"hint: {hint}")

    def progress(self) -> Progress:
        """Something for library code to report its progress to."""
        if self.quiet:
            return SilentProgress()
        if not self.is_terminal:
            return PlainProgress(self)
        self.close()
        self._bar = BarProgress(self._err, color=self._color, log=self.say)
        return self._bar

    @property
    def is_terminal(self) -> bool:
        """Whether a person watches standard error on a terminal that can redraw a line."""
        return self._err.isatty() and os.environ.get("TERM") != "dumb"

    def close(self) -> None:
        """Give the terminal back if a bar is on it."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def show(self, line: str) -> None:
        """Write one line that the log file gets by another way."""
        if self._bar is not None:
            self._bar.log(line)
        else:
            write(self._err, line + "\n")

    def _emit(self, text: str) -> None:
        self.is_open = write(self._out, text) and self.is_open

    def _paint(self, word: str, code: str) -> str:
        return f"\x1b[{code}m{word}\x1b[0m" if self._color and self._err.isatty() else word

    def _rich_table(
        self, columns: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]
    ) -> None:
        from rich import box
        from rich.console import Console as RichConsole
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name, to_right in zip(columns, right, strict=True):
            table.add_column(name, justify="right" if to_right else "left", overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))
        console = RichConsole(file=self._out, highlight=False)
        with console.capture() as capture:
            console.print(table)
        self._emit(capture.get())


def write(stream: TextIO, text: str) -> bool:
    """Write and flush; False when nobody reads the stream any more."""
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        hush(stream)
        return False
    return True


def hush(stream: TextIO) -> None:
    """Point a stream without a reader at nothing, or Python complains when it flushes at exit."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)


def cell_text(cell: object) -> str:
    """Text of one table cell."""
    if cell is None:
        return "-"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def plain_table(
    columns: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]
) -> str:
    """Lines with two spaces between the columns, a header first."""
    grid = [list(columns), *cells]
    widths = [max(len(row[i]) for row in grid) for i in range(len(columns))]
    lines = []
    for row in grid:
        parts = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines) + "\n"


def standard_streams() -> tuple[TextIO, TextIO]:
    """Standard output and error as they are now; either may be missing in a service."""
    return sys.stdout or open(os.devnull, "w"), sys.stderr or open(os.devnull, "w")
