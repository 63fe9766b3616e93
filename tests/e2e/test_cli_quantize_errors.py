"""quantize on wrong input: one clear line, the right code, source and output place untouched."""

import json
import resource
import shutil
import signal
from collections import namedtuple
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.helpers.cli import Outcome, run_cli, snapshot, spawn_cli, start_cli
from tests.helpers.tiny import TEXT, tiny_model

Capture = pytest.CaptureFixture[str]
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a good model, a sharded one that lacks a shard, and a text."""
    root = tmp_path_factory.mktemp("models")
    good = tiny_model("llama", root / "good", hidden_size=128, intermediate_size=192)
    split(good, root / "sharded")
    split(good, root / "lacking")
    (root / "lacking" / "model-00002-of-00002.safetensors").unlink()
    (root / "text.txt").write_text(TEXT, encoding="utf-8")
    return root


def split(source: Path, target: Path) -> None:
    """Save a model in two shards with an index."""
    shutil.copytree(source, target)
    weights = load_file(source / "model.safetensors")
    (target / "model.safetensors").unlink()
    where = {}
    for number, part in enumerate((sorted(weights)[::2], sorted(weights)[1::2]), 1):
        name = f"model-0000{number}-of-00002.safetensors"
        save_file({key: weights[key] for key in part}, target / name, {"format": "pt"})
        where |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (target / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An output place that exists but for the output."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "small"


PLAIN = ("-m", "rtn", "--set", "scale_search=none")
"""Rounding that reads no text, the quickest way to a finished output."""


def quantize(
    capsys: Capture,
    source: Path,
    output: Path,
    *flags: str | Path,
    method: tuple[str, ...] = PLAIN,
) -> Outcome:
    """Run quantize; check that a failure changed nothing on the disk."""
    before = snapshot(source.parent), snapshot(output.parent)
    outcome = run_cli(capsys, "quantize", source, "-o", output, *method, *flags)
    if outcome.code:
        assert outcome.out == ""
        assert (snapshot(source.parent), snapshot(output.parent)) == before
    return outcome


def test_two_shards_are_fine(capsys: Capture, models: Path, place: Path) -> None:
    outcome = quantize(capsys, models / "sharded", place)
    assert outcome.code == 0, outcome.err
    assert (place / "config.json").is_file()
    assert not place.with_name("small.partial").exists()


def test_missing_folder(capsys: Capture, models: Path, place: Path) -> None:
    outcome = quantize(capsys, models / "god", place)
    outcome.assert_failed(3, "no such folder or file", "god")


def test_missing_shard(capsys: Capture, models: Path, place: Path) -> None:
    outcome = quantize(capsys, models / "lacking", place)
    outcome.assert_failed(3, "model-00002-of-00002.safetensors")


def test_already_quantized(capsys: Capture, models: Path, place: Path) -> None:
    assert quantize(capsys, models / "good", place, "-f", "gptq").code == 0
    again = quantize(capsys, place, place.with_name("smaller"))
    again.assert_failed(3, "already quantized", "gptq")


@pytest.mark.parametrize("flags", [["-g", "48"], ["-g", "128"], ["-s", "w4a16-g128"]])
def test_group_size_that_does_not_divide(
    capsys: Capture, models: Path, place: Path, flags: list[str]
) -> None:
    outcome = quantize(capsys, models / "good", place, *flags)
    outcome.assert_failed(2, "group", "_proj", "--group-size")


def test_a_rule_covers_what_the_group_size_cannot(
    capsys: Capture, models: Path, place: Path
) -> None:
    outcome = quantize(capsys, models / "good", place, "-g", "128", "--keep", "down_proj")
    assert outcome.code == 0, outcome.err


def test_unknown_method(capsys: Capture, models: Path, place: Path) -> None:
    outcome = quantize(capsys, models / "good", place, method=("-m", "gtpq"))
    outcome.assert_failed(2, "did you mean gptq?")


def test_unknown_option_of_a_method(capsys: Capture, models: Path, place: Path) -> None:
    outcome = quantize(capsys, models / "good", place, "--set", "scale_serch=none")
    outcome.assert_failed(2, "scale_serch", "scale_search")


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_output_exists(capsys: Capture, models: Path, place: Path, kind: str) -> None:
    if kind == "folder":
        place.mkdir()
        (place / "precious.txt").write_text("mine", encoding="utf-8")
    elif kind == "file":
        place.write_text("mine", encoding="utf-8")
    else:
        (place.parent / "other").write_text("mine", encoding="utf-8")
        place.symlink_to(place.parent / "other")
    quantize(capsys, models / "good", place).assert_failed(2, "exists", "--force")


def test_force_replaces_a_model_but_no_other_folder(
    capsys: Capture, models: Path, place: Path
) -> None:
    place.mkdir()
    (place / "precious.txt").write_text("mine", encoding="utf-8")
    quantize(capsys, models / "good", place, "--force").assert_failed(2, "holds no model")
    shutil.rmtree(place)
    assert quantize(capsys, models / "good", place).code == 0
    first = snapshot(place)
    assert quantize(capsys, models / "good", place, "--force", "-b", "8").code == 0
    assert snapshot(place).keys() == first.keys()
    assert snapshot(place) != first
    assert [path.name for path in place.parent.iterdir()] == ["small"]


def test_unknown_recipe_key(capsys: Capture, models: Path, place: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("methods: [rtn]\nschem: w4a16\n", encoding="utf-8")
    outcome = quantize(capsys, models / "good", place, "-r", recipe)
    outcome.assert_failed(2, "schem", "did you mean scheme?")


def test_unknown_recipe(capsys: Capture, models: Path, place: Path) -> None:
    quantize(capsys, models / "good", place, "-r", "best-ever").assert_failed(2, "best-ever")


def test_rule_that_matches_nothing(capsys: Capture, models: Path, place: Path) -> None:
    outcome = quantize(capsys, models / "good", place, "--rule", "dwn_proj=w8a16")
    outcome.assert_failed(2, "matches no tensor", "down_proj")


def test_output_folder_that_is_not_there(capsys: Capture, models: Path, place: Path) -> None:
    outcome = run_cli(capsys, "quantize", models / "good", "-o", place / "small", *PLAIN)
    outcome.assert_failed(4, "does not exist", "mkdir -p")
    assert not place.exists()


def test_no_space_before_the_start(
    capsys: Capture, models: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 1000))
    quantize(capsys, models / "good", place).assert_failed(4, "1.0 kB free")


def test_no_space_while_writing(models: Path, place: Path) -> None:
    """A process that may not write files of more than 100 kB meets the same as a full disk."""
    limit = (100_000, 100_000)
    before = snapshot(models)
    process = start_cli(
        *("quantize", models / "good", "-o", place, *PLAIN, "-q"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    out, err = process.communicate(timeout=100)
    Outcome(process.returncode, out, err).assert_failed(4, "cannot write", "small")
    assert out == ""
    assert list(place.parent.iterdir()) == []
    assert snapshot(models) == before


def test_a_process_of_its_own(models: Path, place: Path) -> None:
    outcome = spawn_cli("quantize", models / "good", "-o", place, "-m", "gtpq", "--json")
    outcome.assert_failed(2, "did you mean gptq?")
    assert outcome.document["error"]["exit_code"] == 2


def test_interrupt_during_calibration(models: Path, place: Path, tmp_path: Path) -> None:
    before = snapshot(models)
    # Deep enough that it cannot be finished before the signal arrives.
    deep = tiny_model("llama", tmp_path / "deep", hidden_size=128, num_hidden_layers=64)
    process = start_cli(
        *("quantize", deep, "-o", place, "-m", "gptq", "-b", "4"),
        *("-d", models / "text.txt", "--num-samples", "100", "--seq-len", "64"),
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("quantize: 64 blocks"):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in err
    assert out == ""
    assert list(place.parent.iterdir()) == []
    assert snapshot(models) == before
