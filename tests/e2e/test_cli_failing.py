"""Commands of every verb that must fail: exit code, one line, one hint, no output."""

import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.helpers.cli import run_cli, snapshot
from tests.helpers.tiny import tiny_model

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Good and bad models, texts and places, by the names that the commands use."""
    root = tmp_path_factory.mktemp("failing")
    good = tiny_model("llama", root / "good")
    (root / "empty").mkdir()
    for name in ("alien", "shapeless", "nan", "notok", "badjson"):
        folder = root / name
        folder.mkdir()
        for file in good.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((good / "config.json").read_text(encoding="utf-8"))
    (root / "alien" / "config.json").write_text(json.dumps({**config, "model_type": "mamba9"}))
    del config["num_hidden_layers"]
    (root / "shapeless" / "config.json").write_text(json.dumps(config))
    weights = load_file(good / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")
    save_file(weights, root / "nan" / "model.safetensors", {"format": "pt"})
    (root / "notok" / "tokenizer.json").unlink()
    (root / "badjson" / "config.json").write_text("{")
    (root / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    (root / "short.txt").write_text("Hi")
    (root / "binary.txt").write_bytes(bytes(range(128, 256)) * 9)
    return {path.name: path for path in root.iterdir()} | {"root": root}


@pytest.fixture(scope="module")
def taken_port() -> Iterator[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


# Command with {names} of places; exit code; words that must be in the error or the hint.
COMMANDS = [
    ("quantize ./modle -o {root}/o", 3, "no such folder or file: ./modle"),
    ("quantize {empty} -o {root}/o", 3, "config.json"),
    ("quantize {alien} -o {root}/o", 3, "mamba9"),
    ("quantize {shapeless} -o {root}/o", 3, "num_hidden_layers"),
    ("quantize {nan} -m rtn -o {root}/o", 3, "model.layers.1"),
    ("quantize {badjson} -o {root}/o", 3, "config.json"),
    ("quantize {good} -m gtpq -o {root}/o", 2, "did you mean gptq"),
    ("quantize {good} -b 9 -o {root}/o", 2, "9 bits"),
    ("quantize {good} -f ggfu -o {root}/o", 2, "did you mean gguf"),
    ("quantize {good} -t Q4_0 -f gptq -o {root}/o", 2, "GGUF"),
    ("quantize {good} -d {root}/none.txt -o {root}/o", 3, "none.txt"),
    ("quantize {good} --keep lm_haed -o {root}/o", 2, "did you mean lm_head"),
    ("quantize {good} --device cud -o {root}/o", 2, "cud"),
    ("quantize {good} --shard-size huge -o {root}/o", 2, "not a size"),
    ("eval {good} --text {root}/none.txt", 3, "none.txt"),
    ("eval {good} --text {short.txt} --score third", 2, "'third' is not one of"),
    ("eval {good} --text {binary.txt}", 3, "binary.txt"),
    ("eval {good} --fail-if kl_maen>1 --text {short.txt}", 2, "did you mean kl_mean"),
    ("eval {notok} --text {short.txt}", 3, "tokenizer"),
    ("serve {good} --port {taken}", 4, "--port"),
    ("serve {good} --port 70000", 2, "70000"),
    ("chat http://127.0.0.1:9", 4, "quantkit serve"),
    ("chat {good} --temperature -1", 2, "-1"),
    ("convert {good} -o {root}/o.gguf -f gguf -t Q4_0", 2, "quantkit quantize -m rtn"),
    ("convert {good} -o {root}/o -f gptq", 3, "quantkit quantize -f gptq"),
    ("convert {cut.gguf} -o {root}/o -f hf", 3, "cut.gguf"),
    ("convert {good} -o {good} -f hf", 2, "is the source"),
    ("inspect {root}/none.gguf", 3, "no such folder or file"),
    ("inspect {short.txt}", 3, "short.txt"),
    ("list metods", 2, "metods"),
    ("doctor now", 2, "now"),
]


@pytest.mark.parametrize(("command", "code", "words"), COMMANDS, ids=[c[0] for c in COMMANDS])
def test_failing_command(
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    places: dict[str, Path],
    taken_port: int,
    command: str,
    code: int,
    words: str,
) -> None:
    names = {name: str(path) for name, path in places.items()} | {"taken": str(taken_port)}
    for name, value in names.items():
        command = command.replace("{" + name + "}", value)
    before = snapshot(places["root"])
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi"))
    outcome = run_cli(capsys, *command.split())
    outcome.assert_failed(code, words)
    assert outcome.out == ""
    assert snapshot(places["root"]) == before
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi"))
    again = run_cli(capsys, *command.split(), "--json")
    again.assert_failed(code, words)
    assert again.document["status"] == "error"
    assert again.document["error"]["exit_code"] == code
    assert words in again.document["error"]["message"] + again.document["error"]["hint"]
    assert snapshot(places["root"]) == before
