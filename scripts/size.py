"""Print lines per folder and the longest files; with --check, hold the file budget.

The budget: no source or documentation file above 500 lines; of the source files, the median at most
150 and nine in ten at most 300. Files of five lines and fewer are left out of the statistics, so
that empty package files do not flatter it. Running logs and texts that are data are not counted.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = {".py", ".sh", ".c", ".cc", ".cpp", ".h", ".hpp", ".cu"}
DOCUMENT = {".md"}
UNCOUNTED = {"CHANGELOG.md", "docs/log.md"}
UNCOUNTED_FOLDERS = {"calibration/corpus"}
WALL, MEDIAN, NINE_IN_TEN, NEGLIGIBLE = 500, 150, 300, 5


def files(root: Path, suffixes: set[str]) -> Iterator[Path]:
    """Yield the files of the tree with one of the suffixes, relative to it, each real file once."""
    for folder, names, found in os.walk(root):
        here = Path(folder).relative_to(root)
        names[:] = sorted(
            name
            for name in names
            if not name.startswith(".")
            and name not in {"__pycache__", "build", "dist"}
            and not name.endswith(".egg-info")
            and not (Path(folder, name) / "pyvenv.cfg").exists()
            and (here / name).as_posix() not in UNCOUNTED_FOLDERS
        )
        for name in sorted(found):
            path = here / name
            if path.suffix in suffixes and path.as_posix() not in UNCOUNTED:
                yield path


def count(root: Path, suffixes: set[str]) -> dict[Path, int]:
    """Return the number of lines of each file."""
    return {
        path: len((root / path).read_text(encoding="utf-8").splitlines())
        for path in files(root, suffixes)
    }


def quantile(values: list[int], share: float) -> int:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 100) // 100) - 1)]


def problems(root: Path) -> list[str]:
    """Return one line for each way in which the tree exceeds the budget."""
    source = count(root, SOURCE)
    found = [
        f"{path}: {lines} lines, more than {WALL}"
        for path, lines in (source | count(root, DOCUMENT)).items()
        if lines > WALL
    ]
    lengths = [lines for lines in source.values() if lines > NEGLIGIBLE]
    for share, limit in ((0.5, MEDIAN), (0.9, NINE_IN_TEN)):
        if lengths and (value := quantile(lengths, share)) > limit:
            found.append(f"{share:.0%} of the source files reach {value} lines, more than {limit}")
    return found


def report(root: Path, longest: int = 10) -> str:
    """Return the table of lines per folder, the longest files and the statistics."""
    source = count(root, SOURCE)
    folders: Counter[str] = Counter()
    for path, lines in source.items():
        folders["/".join(path.parts[:2][: max(1, len(path.parts) - 1)])] += lines
    rows = [f"{lines:7d}  {name}" for name, lines in sorted(folders.items())]
    rows.append(f"{sum(folders.values()):7d}  total in {len(source)} files")
    top = sorted(source.items(), key=lambda item: -item[1])[:longest]
    rows += ["", "longest:", *(f"{lines:7d}  {path}" for path, lines in top)]
    lengths = [lines for lines in source.values() if lines > NEGLIGIBLE]
    if lengths:
        rows.append(f"median {quantile(lengths, 0.5)}, nine in ten {quantile(lengths, 0.9)}")
    return "\n".join(rows)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="exit 1 when the budget is exceeded")
    if not parser.parse_args().check:
        print(report(ROOT))
        return 0
    found = problems(ROOT)
    for line in found:
        print(f"error: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
