"""The wheel built from the tree holds the linked packages and their data."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ["quantkit", "calibration", "kernels", "configs", "pyproject.toml", "README.md", "LICENSE"]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Build a wheel from a copy of the tree and return the names in it."""
    tree = tmp_path_factory.mktemp("tree")
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(source, tree / part, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, tree / part)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(tree / "out"), str(tree)], check=True, timeout=100)
    (wheel,) = (tree / "out").glob("quantkit_llm-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.parametrize(
    ("link", "pattern"),
    [
        ("quantkit/calibration", "**/*.py"),
        ("quantkit/calibration/corpus", "**/*.txt"),
        ("quantkit/calibration/corpus", "**/*.jsonl"),
        ("quantkit/calibration/corpus", "**/*.md"),
        ("quantkit/configs", "**/*.yaml"),
        ("quantkit/kernels", "**/*.py"),
        ("quantkit/kernels", "**/*.json"),
        ("quantkit", "*.py"),
        ("quantkit", "py.typed"),
    ],
)
def test_wheel_holds_every_file(wheel_names: set[str], link: str, pattern: str) -> None:
    folder = ROOT / link
    expected = {f"{link}/{path.relative_to(folder).as_posix()}" for path in folder.glob(pattern)}
    assert expected <= wheel_names


def test_wheel_holds_the_linked_packages(wheel_names: set[str]) -> None:
    assert "quantkit/calibration/__init__.py" in wheel_names
    assert "quantkit/kernels/__init__.py" in wheel_names
    assert any(name.startswith("quantkit/configs/recipes/") for name in wheel_names)
    assert any(name.startswith("quantkit/calibration/corpus/") for name in wheel_names)


def test_wheel_holds_nothing_else(wheel_names: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert all(top == "quantkit" or top.endswith(".dist-info") for top in tops)
