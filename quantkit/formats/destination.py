"""Where an output goes: written beside its final name, moved there in one step when it is whole."""

import contextlib
import os
import shutil
from pathlib import Path

from quantkit.errors import ResourceError, UsageError
from quantkit.formats.access import writing

_MARKS = ("quantkit.json", "config.json")


class Destination:
    """The final place of an output and the partial one beside it.

    Args:
        path: final file or folder.
        force: replace what is there; the old output stays until the new one is whole.
        needed: bytes that the output takes.

    Attributes:
        path: final place.
        partial: ``path`` with ``.partial``; whoever writes creates it.

    Raises:
        UsageError: something is there already and may not be replaced.
        ResourceError: the folder above does not exist, or has too little space.
    """

    def __init__(self, path: Path, *, force: bool, needed: int) -> None:
        with writing(path):
            # A link is followed, so that the new output lands where the old one is.
            self.path = Path(os.path.realpath(path)) if path.is_symlink() else path.absolute()
            self.partial = self.path.with_name(self.path.name + ".partial")
            self._aside = self.path.with_name(f"{self.path.name}.replaced-{os.getpid()}")
            check_replaceable(self.path, force=force)
            if os.path.lexists(self.partial) and not force:
                raise UsageError(
                    f"{self.partial} exists: an earlier run was interrupted, or another is writing",
                    hint="remove it, or use --force",
                )
            check_space(self.path, needed)
            if os.path.lexists(self.partial):
                _remove(self.partial)

    def commit(self) -> None:
        """Move the partial output to its final place, the old one aside and then away.

        Raises:
            ResourceError: the disk refuses; the old output is back in its place.
        """
        with writing(self.path):
            had_old = os.path.lexists(self.path)
            if had_old:
                os.rename(self.path, self._aside)
            try:
                os.rename(self.partial, self.path)
            except BaseException:
                if had_old:
                    os.rename(self._aside, self.path)
                raise
            try:
                _sync(self.path.parent)
            finally:
                if had_old:
                    _remove(self._aside)

    def discard(self) -> None:
        """Remove the partial output; a failure to do so is not worth hiding the reason for it."""
        with contextlib.suppress(OSError):
            _remove(self.partial)


def check_replaceable(path: Path, *, force: bool) -> None:
    """Refuse an output place that is taken.

    Raises:
        UsageError: ``path`` exists and ``force`` is not set, or holds what no run of ours wrote.
    """
    if not os.path.lexists(path):
        return
    if not force:
        raise UsageError(
            f"{path} exists", hint="choose another output, or use --force to replace it"
        )
    if path.is_dir():
        names = os.listdir(path)
        if names and not any(mark in names for mark in _MARKS):
            raise UsageError(
                f"{path} exists and holds no model, so it is not replaced",
                hint="choose another output folder",
            )


def check_space(path: Path, needed: int) -> None:
    """Compare the free space of the folder above ``path`` with the bytes of an output.

    Raises:
        ResourceError: the folder does not exist, or has less space than needed.
    """
    parent = path.parent
    if not parent.is_dir():
        raise ResourceError(
            f"cannot write {path}: the folder {parent} does not exist", hint=f"mkdir -p {parent}"
        )
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise ResourceError(
            f"{path} needs {format_bytes(needed)}, but {parent} has {format_bytes(free)} free",
            hint="free some space or choose another place",
        )


def format_bytes(count: int) -> str:
    """Bytes for people, decimal units."""
    if count < 1000:
        return f"{count} bytes"
    value = float(count)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 1000 or unit == "TB":
            break
    return f"{value:.1f} {unit}"


def sync_folder(path: Path) -> None:
    """Bring the entries of a folder to the disk.

    Raises:
        ResourceError: the disk refuses.
    """
    with writing(path):
        _sync(path)


def write_file(path: Path, data: bytes) -> None:
    """Write a small file and bring it to the disk.

    Raises:
        ResourceError: the disk refuses.
    """
    with writing(path), path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
