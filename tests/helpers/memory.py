"""Peak memory of a child process, as the kernel counts it."""

import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path


def run_and_watch(command: Sequence[str]) -> tuple[int, int]:
    """Run a command to its end.

    Returns:
        Its exit code, and the largest sampled sum of anonymous and shared memory in bytes. Pages of
        mapped files are not counted: the kernel takes them back at any time.
    """
    process = subprocess.Popen(command)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _private_bytes(process.pid))
        time.sleep(0.02)
    return process.returncode, peak


def _private_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", status, re.MULTILINE)
    return sum(int(kilobytes) * 1024 for kilobytes in found)
