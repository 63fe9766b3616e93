"""Pickle-based weights: sound ones load, hostile ones never run, safetensors come first."""

import json
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from quantkit.errors import ModelError
from quantkit.formats import open_model
from quantkit.formats.complete import check_complete
from tests.helpers.folders import float_tensors, write_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder without weights."""
    path = write_folder(tmp_path / "model", float_tensors())
    (path / "model.safetensors").unlink()
    return path


class Bomb:
    """Writes a marker file when it is unpickled without care."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.marker), "w")


def test_code_in_a_pickle_never_runs(folder: Path, tmp_path: Path) -> None:
    """C62, as torch.save, as a bare pickle, and hidden in an archive that torch wrote."""
    marker = tmp_path / "marker"
    path = folder / "pytorch_model.bin"

    torch.save({"x": torch.ones(1), "bomb": Bomb(marker)}, path)
    with pytest.raises(ModelError, match=r"pytorch_model\.bin.*could run code"):
        open_model(folder)

    path.write_bytes(pickle.dumps(Bomb(marker)))
    with pytest.raises(ModelError, match=r"pytorch_model\.bin"):
        open_model(folder)

    torch.save({"x": torch.ones(1)}, path)
    with zipfile.ZipFile(path) as archive:
        parts = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in parts.items():
            hostile = pickle.dumps(Bomb(marker), protocol=2)
            archive.writestr(name, hostile if name.endswith("data.pkl") else data)
    with pytest.raises(ModelError, match=r"pytorch_model\.bin"):
        open_model(folder)

    # The proof that this bomb is live.
    assert not marker.exists()
    pickle.loads(pickle.dumps(Bomb(marker))).close()
    assert marker.exists()


def test_sound_state_dict(folder: Path) -> None:
    tensors = float_tensors()
    torch.save({n: torch.nn.Parameter(t) for n, t in tensors.items()}, folder / "pytorch_model.bin")
    opened = open_model(folder)
    assert check_complete(opened) == ()
    for name, tensor in tensors.items():
        loaded = opened.load(name)
        assert isinstance(loaded, torch.Tensor)
        assert torch.equal(loaded, tensor)
        assert not loaded.requires_grad
        assert opened.tensors[name].nbytes == tensor.nbytes
        assert opened.tensors[name].stored == "F32"


def test_shards(folder: Path) -> None:
    tensors = float_tensors()
    names = list(tensors)
    weight_map = {}
    for i, part in enumerate((names[:5], names[5:]), start=1):
        file = f"pytorch_model-0000{i}-of-00002.bin"
        torch.save({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    opened = open_model(folder)
    for name in reversed(names):
        assert torch.equal(opened.load_float(name), tensors[name])
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(ModelError, match="pytorch_model-00002-of-00002"):
        open_model(folder)


def test_safetensors_come_first(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    torch.save(Bomb(marker), folder / "pytorch_model.bin")
    save_file({"x": torch.full((2,), 3.0)}, folder / "model.safetensors")
    opened = open_model(folder)
    assert opened.load_float("x").tolist() == [3.0, 3.0]
    assert not marker.exists()


@pytest.mark.parametrize("case", ["cut", "text", "list", "nested", "empty", "sparse"])
def test_other_contents(folder: Path, case: str) -> None:
    path = folder / "pytorch_model.bin"
    values = {
        "list": [torch.ones(1)],
        "nested": {"state_dict": {"x": torch.ones(1)}},
        "empty": {},
        "sparse": {"x": torch.eye(3).to_sparse()},
    }
    torch.save(values.get(case, {"x": torch.ones(1000)}), path)
    if case == "cut":
        path.write_bytes(path.read_bytes()[:-500])
    if case == "text":
        path.write_text("<html>404</html>")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin") as caught:
        open_model(folder)
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_custom_code_is_never_run(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    save_file(float_tensors(), folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    opened = open_model(folder)
    opened.load("lm_head.weight")
    assert "evil.py" not in opened.companion_reader()
    assert not marker.exists()
