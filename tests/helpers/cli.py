"""Running the command line, in this process or in one of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROGRAM = [sys.executable, "-c", "import sys; from quantkit.cli.main import main; sys.exit(main())"]


@dataclass(frozen=True)
class Outcome:
    """What one command line gave."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Standard output as the one JSON document that it must be."""
        document = json.loads(self.out)
        assert isinstance(document, dict)
        return document

    def assert_failed(self, code: int, *words: str) -> None:
        """Check the shape of a failure: exit code, error line, hint line, nothing else."""
        assert self.code == code, self
        lines = [line for line in self.err.splitlines() if line]
        errors = [line for line in lines if line.startswith("error: ")]
        assert len(errors) == 1, self.err
        assert lines[-1].startswith("hint: "), self.err
        assert lines[-2] == errors[0], self.err
        assert "Traceback" not in self.err
        for word in words:
            assert word in errors[0] + lines[-1], self.err


def run_cli(capsys: pytest.CaptureFixture[str], *args: str | Path) -> Outcome:
    """Run a command line in this process."""
    from quantkit.cli.main import main

    capsys.readouterr()
    code = main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return Outcome(code, out, err)


def start_cli(
    *args: str | Path, environment: Mapping[str, str] | None = None, **settings: Any
) -> subprocess.Popen[str]:
    """Start a command line in a process of its own."""
    return subprocess.Popen(
        [*PROGRAM, *map(str, args)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings},
    )


def spawn_cli(
    *args: str | Path, stdin: str = "", environment: Mapping[str, str] | None = None
) -> Outcome:
    """Run a command line in a process of its own to its end."""
    process = start_cli(*args, environment=environment, stdin=subprocess.PIPE)
    out, err = process.communicate(stdin, timeout=100)
    return Outcome(process.returncode, out, err)


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes, and every folder; to compare before with after."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else b"folder"
        for path in sorted(root.rglob("*"))
    }
