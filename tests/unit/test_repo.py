"""Rules that the repository as a whole keeps: file sizes, links, and no path of one machine."""

import importlib.util
import os
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINKS = {
    "quantkit/kernels": "../kernels/python",
    "quantkit/calibration": "../calibration",
    "quantkit/configs": "../configs",
}


def load(name: str) -> ModuleType:
    """Import a script of the scripts folder."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


size = load("size")


def test_files_keep_the_budget() -> None:
    assert size.problems(ROOT) == []


def test_budget_notices_each_excess(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("x = 1\n" * 501)
    (tmp_path / "CHANGELOG.md").write_text("line\n" * 900)
    (tmp_path / "empty.py").touch()
    found = size.problems(tmp_path)
    assert len(found) == 3
    assert found[0].startswith("long.py: 501 lines")


@pytest.mark.parametrize(("share", "expected"), [(0.5, 5), (0.9, 9), (1.0, 10)])
def test_quantile(share: float, expected: int) -> None:
    assert size.quantile(list(range(10, 0, -1)), share) == expected


def test_budget_sees_each_file_once() -> None:
    paths = [(ROOT / path).resolve() for path in size.files(ROOT, {".py"})]
    assert len(paths) == len(set(paths))
    assert ROOT / "calibration" / "__init__.py" in paths
    assert ROOT / "kernels" / "python" / "__init__.py" in paths


def test_links_are_relative() -> None:
    assert {link: os.readlink(ROOT / link) for link in LINKS} == LINKS


def tracked() -> list[Path]:
    """Return the files that belong to the repository, without the licence."""
    git = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(git, capture_output=True, text=True, check=True)
    paths = {ROOT / name for name in done.stdout.split("\0") if name and name != "LICENSE"}
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


def test_no_file_is_large() -> None:
    assert [path for path in tracked() if path.stat().st_size > 500_000] == []


def test_no_path_of_one_machine() -> None:
    """System folders may be named, but no home, no scratch folder and not where this clone is."""
    here = {str(folder) for folder in (ROOT, ROOT.parent, Path.home()) if folder != Path("/")}
    alternatives = "|".join(re.escape(folder) for folder in sorted(here))
    machine = re.compile(rf"(?<![\w.~$}}/:-])(?:(?:{alternatives})/|/(?:home|Users|root|mnt|tmp)/)")
    found = []
    for path in tracked():
        text = path.read_bytes().decode("utf-8", errors="replace")
        found += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
            for number, line in enumerate(text.splitlines(), 1)
            if machine.search(line) and path != Path(__file__).resolve()
        ]
    assert found == []
