"""GPTQ folders whose settings and tensors do not fit together, and odd forms that others write."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from quantkit.core.packing import pack
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.scheme import Scheme
from quantkit.errors import ModelError
from quantkit.formats import FORMATS, open_model
from tests.helpers.folders import float_tensors, plan_for, quantize_linears, snapshot

UP = "model.layers.0.mlp.up_proj"


def edit_config(folder: Path, **changes: object) -> None:
    """Change keys of the quantization block; None removes one."""
    config = json.loads((folder / "config.json").read_text())
    block = {**config["quantization_config"], **changes}
    config["quantization_config"] = {k: v for k, v in block.items() if v is not None}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    scheme = Scheme.parse("w4a16-g32")
    values = quantize_linears(float_tensors(), scheme)
    with FORMATS.get("gptq").writer(tmp_path / "model", plan_for(values)) as writer:
        for name, value in values.items():
            writer.put(name, value)
        writer.close({})
    return tmp_path / "model"


def refused(folder: Path, pattern: str, *, load: bool = False) -> None:
    before = snapshot(folder)
    with pytest.raises(ModelError, match=pattern) as caught:
        open_model(folder).load(f"{UP}.weight") if load else open_model(folder)
    assert "\n" not in caught.value.message
    assert snapshot(folder) == before


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"bits": 3}, "3 bits"),
        ({"bits": 5}, "bits is 5"),
        ({"bits": None}, "bits is None"),
        ({"bits": True}, "bits is True"),
        ({"group_size": 64}, "group size 64"),
        ({"group_size": 0}, "group_size is 0"),
        ({"sym": "yes"}, "sym is 'yes'"),
        ({"checkpoint_format": "marlin"}, "marlin"),
        ({"dynamic": []}, None),
        ({"dynamic": {"+:(": {"bits": 4}}}, "regular expression"),
        ({"dynamic": {"+:.*up_proj": {"bits": 7}}}, "bits is 7"),
        ({"dynamic": {"+:.*up_proj": 3}}, "not an object"),
    ],
)
def test_damaged_settings(folder: Path, changes: dict[str, object], pattern: str | None) -> None:
    edit_config(folder, **changes)
    if pattern is None:  # an empty list means no overrides
        open_model(folder)
    else:
        refused(folder, pattern)


def test_settings_of_quantize_config_alone(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    assert open_model(folder).quant_method == "gptq"


def rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replace parts of one packed linear; None drops one."""
    tensors = load_file(folder / "model.safetensors")
    for part, tensor in changes.items():
        tensors.pop(f"{UP}.{part}", None)
        if tensor is not None:
            tensors[f"{UP}.{part}"] = tensor
    save_file(tensors, folder / "model.safetensors")


def test_damaged_parts(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    for changes, pattern, load in [
        ({"qzeros": None}, r"up_proj\.qzeros is missing", False),
        ({"scales": None}, r"up_proj\.scales is missing", False),
        ({"qweight": None}, r"up_proj\.qweight is missing", False),
        ({"scales": torch.ones(3, 192, dtype=torch.float16)}, r"up_proj\.scales", False),
        ({"scales": torch.ones(2, 192, dtype=torch.int16)}, "I16", False),
        ({"qweight": torch.ones(8, 192, dtype=torch.int64)}, "I64", False),
        ({"qweight": torch.ones(8, dtype=torch.int32)}, "matrices", False),
        ({"weight": torch.ones(192, 64)}, "both", False),
        ({"g_idx": torch.zeros(64, dtype=torch.int32)}, "groups of 32", True),
        ({"g_idx": torch.full((64,), -1, dtype=torch.int32)}, "groups of 32", True),
        ({"qzeros": torch.full((2, 24), 0x77777776, dtype=torch.int32)}, "sym is true", True),
        ({"qzeros": torch.full((2, 24), -1, dtype=torch.int32)}, "overflow", True),
    ]:
        (folder / "model.safetensors").write_bytes(whole)
        rewrite(folder, **changes)
        refused(folder, pattern, load=load)


def test_missing_g_idx_means_contiguous_groups(folder: Path) -> None:
    expected = open_model(folder).load_float(f"{UP}.weight")
    rewrite(folder, g_idx=None)
    assert torch.equal(open_model(folder).load_float(f"{UP}.weight"), expected)


def test_asymmetric_version_1_of_others(folder: Path) -> None:
    """Version 1 with zero points of its own, as other programs write it."""
    fields = torch.randint(0, 15, (192, 2), dtype=torch.uint8)
    rewrite(folder, qzeros=pack(fields.T.contiguous(), 4))
    edit_config(folder, sym=False)
    loaded = open_model(folder).load(f"{UP}.weight")
    assert isinstance(loaded, QuantizedTensor)
    assert loaded.zeros is not None
    assert torch.equal(loaded.zeros, fields + 1)


def test_declared_but_not_packed(folder: Path) -> None:
    save_file(float_tensors(), folder / "model.safetensors")
    refused(folder, "no packed linear")
