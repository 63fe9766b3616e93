"""open_model: what is local, which container opens it, and what travels beside the weights."""

import json
import re
import socket
import time
from pathlib import Path

import pytest
import torch

from quantkit.errors import ModelError, UsageError
from quantkit.formats import FORMATS, detect_format, open_model
from quantkit.formats.companions import list_companions, read_companions
from quantkit.formats.complete import check_complete
from quantkit.formats.hub import is_hub_id
from tests.helpers.folders import COMPANIONS, CONFIG, float_tensors, write_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", float_tensors())


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any connection is an error of the test."""

    def refuse(*args: object) -> None:
        raise AssertionError(f"a connection was attempted: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    "ref",
    ["./modle", "../modle", "/no/such/modle", "~/no-such-modle", "modle", "a/b/c", "x/y.gguf", ""],
)
def test_mistyped_paths_never_reach_the_hub(
    ref: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C68."""
    monkeypatch.chdir(tmp_path)
    start = time.perf_counter()
    with pytest.raises(ModelError, match=r"no such folder|has no config\.json") as caught:
        open_model(ref)
    assert time.perf_counter() - start < 1.0
    assert caught.value.hint
    with pytest.raises(ModelError, match=r"no such folder|has no config\.json"):
        open_model(Path("org/name") / ref)


@pytest.mark.usefixtures("no_network")
def test_local_forms(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent.parent)
    short = f"{folder.parent.name}/{folder.name}"
    monkeypatch.setenv("HOME", str(folder.parent))
    for ref in (folder, str(folder), f"{folder}/", short, f"./{short}", "~/model"):
        assert open_model(ref).format == "hf"
    with pytest.raises(UsageError, match="revision"):
        open_model(folder, revision="main")


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("org/name", True),
        ("Qwen/Qwen2.5-0.5B", True),
        ("name", False),
        ("./org/name", False),
        ("org/name/", False),
        ("org/name/file", False),
        ("/org", False),
        ("~/name", False),
        ("org/model.gguf", False),
        ("org/na me", False),
        ("org/..", False),
    ],
)
def test_hub_ids(ref: str, expected: bool) -> None:
    assert is_hub_id(ref) is expected


def test_containers_by_name() -> None:
    assert list(FORMATS) == ["hf", "gptq", "gguf"]
    assert [FORMATS.get(name).name for name in ("hf", "gptq")] == ["hf", "gptq"]
    with pytest.raises(UsageError, match="unknown format 'gpqt'") as caught:
        FORMATS.get("gpqt")
    assert "gptq" in str(caught.value.hint)


def test_detection(folder: Path, tmp_path: Path) -> None:
    assert detect_format(folder) == "hf"
    config = {**CONFIG, "quantization_config": {"quant_method": "GPTQ", "bits": 4}}
    (folder / "config.json").write_text(json.dumps(config))
    assert detect_format(folder) == "gptq"
    (tmp_path / "broken.gguf").write_bytes(b"GG")
    assert detect_format(tmp_path / "broken.gguf") == "gguf"


@pytest.mark.parametrize("name", ["model.safetensors", "notes.txt"])
def test_a_file_that_is_no_model(folder: Path, name: str) -> None:
    (folder / "notes.txt").write_text("x")
    with pytest.raises(ModelError, match="not a model file") as caught:
        open_model(folder / name)
    assert "folder" in str(caught.value.hint)


def test_unknown_family_opens(tmp_path: Path) -> None:
    config = {"model_type": "novel", "quantity": 7}
    opened = open_model(write_folder(tmp_path / "m", {"w": torch.ones(2)}, config=config))
    assert opened.model is None
    assert opened.config == config
    with pytest.raises(ModelError, match="'novel' is not supported"):
        check_complete(opened)


def test_known_family_with_a_bad_config(tmp_path: Path) -> None:
    config = {**CONFIG, "num_key_value_heads": 3}
    folder = write_folder(tmp_path / "m", {"w": torch.ones(2)}, config=config)
    with pytest.raises(ModelError, match=rf"{re.escape(str(folder))}.*num_key_value_heads 3"):
        open_model(folder)


def test_companions(folder: Path) -> None:
    extra = {
        "README.md": b"# card",
        "merges.txt": b"a b",
        "tokenizer.model": b"\x0a\x0b",
        "vocab.tiktoken": b"YQ== 0",
        "NOTICE": b"notice",
        "preprocessor_config.json": b"{}",
    }
    left_out = {
        "modeling_evil.py": "code",
        "optimizer.pt": "not a companion file",
        "training_args.bin": "not a companion file",
        "model.gguf": "not a companion file",
        "huge.json": "larger than 64000000 bytes",
        "onnx": "not a file",
        "model.safetensors": "not a companion file",
    }
    own = ("quantkit.json", "quantize_config.json", "x.safetensors.index.json", ".gitattributes")
    for name, data in extra.items():
        (folder / name).write_bytes(data)
    for name in (*left_out, *own):
        if name == "onnx":
            (folder / name).mkdir()
        elif name != "model.safetensors":
            (folder / name).write_bytes(b"x")
    with (folder / "huge.json").open("wb") as file:
        file.truncate(64_000_001)
    assert read_companions(folder) == {**COMPANIONS, **extra}
    assert list_companions(folder).left_out == left_out
