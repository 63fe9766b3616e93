"""Everything that can go wrong for a reason outside quantkit, with its exit code and a hint.

A message is one line that names the file, tensor or field and the reason; the hint is one line that
says what to do. Anything else that is raised is a bug and leaves with exit code 1.
"""

from typing import ClassVar

EXIT_OK = 0
EXIT_BUG = 1
EXIT_INTERRUPTED = 130


class QuantkitError(Exception):
    """Base of all expected failures.

    Args:
        message: one line naming the file, tensor or field and the reason.
        hint: one line saying what to do about it.
    """

    exit_code: ClassVar[int] = EXIT_BUG

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(QuantkitError):
    """A flag, argument or combination of them that cannot be meant."""

    exit_code = 2


class RecipeError(UsageError):
    """A recipe with an unknown key or a value that cannot be meant."""


class ModelError(QuantkitError):
    """A model, or a file of it, that is damaged, incomplete or not supported."""

    exit_code = 3


class DataError(QuantkitError):
    """A calibration or evaluation text that cannot be read or used."""

    exit_code = 3


class ResourceError(QuantkitError):
    """Not enough memory, disk, or no access to a port, device or folder."""

    exit_code = 4


class CheckFailed(QuantkitError):
    """A gate or a verification said no."""

    exit_code = 5
