"""Log messages and warnings of every library: to standard error when asked, to a file in full."""

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from quantkit.cli.console import Console
from quantkit.errors import ResourceError

LOGGER = logging.getLogger("quantkit")


class _ConsoleHandler(logging.Handler):
    """Shows records as narration, one line each."""

    def __init__(self, console: Console, level: int) -> None:
        super().__init__(level)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Say the record."""
        if not self._console.quiet:
            word = "warning: " if record.levelno >= logging.WARNING else ""
            self._console.show(f"{word}{record.name}: {' '.join(record.getMessage().split())}")


@contextlib.contextmanager
def logging_to(console: Console, log_file: Path | None, *, verbose: bool) -> Iterator[None]:
    """Send log messages of all libraries to the console and, if wanted, everything to a file.

    Python warnings are for programmers: the file gets them, the console only if ``verbose``.

    Raises:
        ResourceError: the file cannot be written.
    """
    root = logging.getLogger()
    before = root.level
    screen = _ConsoleHandler(console, logging.INFO if verbose else logging.WARNING)
    screen.addFilter(lambda record: not record.exc_info)
    if not verbose:
        screen.addFilter(lambda record: record.name != "py.warnings")
        # Read by transformers when it is imported; it has a handler of its own.
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    handlers: list[logging.Handler] = [screen]
    if log_file is not None:
        handlers.append(file := _file_handler(log_file))
        console.transcript = lambda line: file.emit(_record(line))
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(logging.INFO)
    with warnings.catch_warnings():  # puts back what captureWarnings replaces
        logging.captureWarnings(True)
        try:
            yield
        finally:
            logging.captureWarnings(False)
            root.setLevel(before)
            for handler in handlers:
                root.removeHandler(handler)
                handler.close()


def _file_handler(path: Path) -> logging.Handler:
    try:
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise ResourceError(
            f"--log-file {path}: {error.strerror}", hint="choose a file in a folder you can write"
        ) from None
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler


def _record(line: str) -> logging.LogRecord:
    return logging.LogRecord("quantkit", logging.INFO, __file__, 0, line, None, None)
