"""From whatever was raised to one line, one hint and an exit code."""

import errno
from typing import ClassVar

import rich_click as click

from quantkit.errors import (
    EXIT_BUG,
    EXIT_INTERRUPTED,
    CheckFailed,
    DataError,
    ModelError,
    QuantkitError,
    ResourceError,
    UsageError,
)

_RESOURCE_ERRNOS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EADDRINUSE,
    errno.EADDRNOTAVAIL,
}
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
# What to do when whoever raised the error had nothing better to say.
_HINTS: dict[type[QuantkitError], str] = {
    ModelError: "`quantkit inspect PATH` shows what the files hold",
    DataError: "check the text with a plain UTF-8 file, given by its path",
    ResourceError: "free some memory or disk space, or choose another place or port",
    UsageError: "`quantkit VERB --help` lists every flag",
}


class Interrupted(QuantkitError):
    """Ctrl-C."""

    exit_code: ClassVar[int] = EXIT_INTERRUPTED


class Unexpected(QuantkitError):
    """A bug of quantkit or of a library below it."""

    exit_code: ClassVar[int] = EXIT_BUG


def explain(error: BaseException) -> QuantkitError:
    """The failure as a QuantkitError whose message is one printable line and which has a hint."""
    known = _classify(error)
    known.message = one_line(known.message)
    if known.hint is None:
        known.hint = next((hint for kind, hint in _HINTS.items() if isinstance(known, kind)), None)
    elif known.hint:
        known.hint = one_line(known.hint)
    return known


def _classify(error: BaseException) -> QuantkitError:
    if isinstance(error, QuantkitError):
        return error
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return Interrupted("interrupted", hint="")
    if isinstance(error, click.UsageError):
        return _usage(error)
    if isinstance(error, click.ClickException):
        return UsageError(error.format_message())
    if isinstance(error, OSError) and error.errno in _RESOURCE_ERRNOS:
        where = f"{error.filename}: " if error.filename else ""
        return ResourceError(f"{where}{error.strerror or error}")
    if _is_out_of_memory(error):
        return ResourceError(
            f"out of memory: {error}" if str(error) else "out of memory",
            hint="close other programs, or use a smaller --seq-len, --batch-size or --num-samples",
        )
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Unexpected(
        f"unexpected {reason} (this is a bug)",
        hint="run again with --traceback, or --log-file FILE, and report what it says",
    )


def _usage(error: click.UsageError) -> UsageError:
    message = error.message if isinstance(error, click.NoSuchOption) else error.format_message()
    message = message.strip().removesuffix(".")
    message = message[:1].lower() + message[1:]
    if near := getattr(error, "possibilities", None):
        return UsageError(message, hint=f"did you mean {' or '.join(near)}?")
    path = error.ctx.command_path if error.ctx else "quantkit"
    return UsageError(message, hint=f"`{path} --help` lists every flag")


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True  # torch's own class is known by name, since torch may not be imported
    return isinstance(error, RuntimeError) and any(t in str(error).lower() for t in _OUT_OF_MEMORY)


def one_line(text: str) -> str:
    """The text on one line, without characters that could steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def is_failed_check(error: QuantkitError) -> bool:
    """Whether the command did its work and the answer was no."""
    return isinstance(error, CheckFailed)
