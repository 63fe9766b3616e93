"""What importing quantkit costs, and that the root folder `kernels` shadows nobody's package."""

import os
import statistics
import subprocess
import sys
from importlib.metadata import distribution, entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(code: str) -> str:
    """Run code in a fresh interpreter that has the root on its path; return what it printed."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "module",
    [
        "quantkit",
        "quantkit.errors",
        "quantkit.cli.main",
        "quantkit.runtime.blocks",
        "quantkit.runtime.request",
        "quantkit.runtime.scheduler",
        "quantkit.runtime.text",
    ],
)
def test_import_needs_no_torch(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    assert run(code) == "[]"


def test_public_names_are_offered() -> None:
    assert run("import quantkit; print(quantkit.quantize, quantkit.load)")


def test_kernels_folder_is_no_package() -> None:
    code = (
        "import importlib.util as u; s = u.find_spec('kernels'); print(s and s.loader and s.origin)"
    )
    origin = run(code)
    assert origin == "None" or not Path(origin).is_relative_to(ROOT)
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_linked_packages_are_the_folders_at_the_root() -> None:
    code = "import quantkit.kernels as k, quantkit.calibration as c; print(k.__file__, c.__file__)"
    kernels, calibration = (Path(name).resolve() for name in run(code).split())
    assert kernels == ROOT / "kernels" / "python" / "__init__.py"
    assert calibration == ROOT / "calibration" / "__init__.py"


def test_distribution_and_command_names() -> None:
    assert distribution("quantkit-llm").version == run(
        "import quantkit; print(quantkit.__version__)"
    )
    (command,) = entry_points(group="console_scripts", name="quantkit")
    assert command.value == "quantkit.cli.main:main"


def test_help_is_quick() -> None:
    """Processor time, which is the wall-clock time of an idle machine, whoever else is running."""
    command = [sys.executable, "-c", "from quantkit.cli.main import main; main()", "--help"]
    seconds = []
    for _ in range(5):
        before = os.times()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        after = os.times()
        assert done.returncode == 0, done.stderr
        assert "quantize" in done.stdout
        used = after.children_user + after.children_system
        seconds.append(used - before.children_user - before.children_system)
    assert statistics.median(seconds) < 0.7
