"""What only a process of its own shows: start-up cost, a reader that leaves, Ctrl-C."""

import resource
import statistics
import subprocess
from pathlib import Path

import pytest

from tests.helpers.cli import PROGRAM, spawn_cli, start_cli


def children_seconds() -> float:
    """Processor time of ended child processes, which other programs disturb least."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("args", [["--help"], ["quantize", "--help"]])
def test_help_is_quick(args: list[str]) -> None:
    seconds = []
    for _ in range(5):
        start = children_seconds()
        assert spawn_cli(*args).code == 0
        seconds.append(children_seconds() - start)
    assert statistics.median(seconds) < 0.7


def test_a_mistyped_path_is_told_at_once() -> None:
    start = children_seconds()
    spawn_cli("quantize", "./modle").assert_failed(3, "no such folder or file: ./modle")
    assert children_seconds() - start < 1


@pytest.mark.parametrize("args", [["--help"], ["list", "archs"], ["list", "archs", "--json"]])
def test_a_reader_that_leaves(args: list[str]) -> None:
    process = start_cli(*args)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == ""
    process.stderr.close()


def test_help_for_a_terminal_without_unicode() -> None:
    outcome = spawn_cli("--help", environment={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert outcome.code == 0
    assert "quantize" in outcome.out


def test_no_stream_at_all() -> None:
    done = subprocess.run(
        ["bash", "-c", '"$@" >&- 2>&-', "-", *PROGRAM, "list", "archs"], check=False, timeout=60
    )
    assert done.returncode == 0


def test_log_file(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    spawn_cli("list", "archs", "--log-file", log)
    spawn_cli("inspect", tmp_path, "--log-file", log).assert_failed(3)
    text = log.read_text(encoding="utf-8")
    assert "quantkit list {'kind': 'archs'}" in text
    assert "error: " in text
    assert "Traceback" in text
