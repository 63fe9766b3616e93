"""What goes wrong on a disk, turned into one line that names the path and the cause."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quantkit.errors import ModelError, ResourceError

_WRITE_HINTS = {
    errno.ENOSPC: "free some space or choose another place",
    errno.EDQUOT: "the disk quota is used up; free some space or choose another place",
    errno.EFBIG: "the file size limit is too small; raise it with `ulimit -f`",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.EROFS: "the disk is mounted read-only; choose another place",
}


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the OSErrors of reading ``path`` into errors that name it.

    Raises:
        ModelError: the file is missing or cannot be read.
        ResourceError: the permission to read it is missing.
    """
    try:
        yield
    except PermissionError:
        raise ResourceError(
            f"cannot read {path}: permission denied", hint="check who may read the file"
        ) from None
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist") from None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {_cause(error)}") from None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the OSErrors of writing ``path`` into a ResourceError that names it."""
    try:
        yield
    except OSError as error:
        raise ResourceError(
            f"cannot write {path}: {_cause(error)}",
            hint=_WRITE_HINTS.get(error.errno or 0, "check the disk and the permissions"),
        ) from None


def _cause(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
