"""How much memory this process may still take, a container's limit respected."""

import os
from pathlib import Path

from quantkit.errors import ResourceError


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be allocated without swapping.

    Args:
        root: where ``proc`` and ``sys`` are mounted.
    """
    limits = []
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) * 1024)
    group = root / "sys/fs/cgroup"
    limit, used = _read(group / "memory.max").strip(), _read(group / "memory.current").strip()
    if limit.isdigit() and used.isdigit():
        limits.append(max(0, int(limit) - int(used) + _file_cache(_read(group / "memory.stat"))))
    if limits:
        return min(limits)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(needed: int, purpose: str) -> None:
    """Refuse early what cannot fit.

    Args:
        needed: bytes.
        purpose: what needs them, for the message.

    Raises:
        ResourceError: less than that is available.
    """
    available = available_bytes()
    if needed > available:
        raise ResourceError(
            f"{purpose} needs about {needed / 1e9:.1f} GB of memory, of which "
            f"{available / 1e9:.1f} GB are available",
            hint="free memory, or run it on a larger machine",
        )


def _file_cache(stat: str) -> int:
    """Bytes of a container's use that are only cached files, which the kernel gives up."""
    for line in stat.splitlines():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
