"""The GGUF writer: nothing lost on the way, nothing wrong written, nothing left behind."""

import errno
import io
import json
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quantkit.core.checkpoint import Checkpoint
from quantkit.core.output import PlannedTensor
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.scheme import Scheme
from quantkit.errors import ModelError, ResourceError, UsageError
from quantkit.formats import FORMATS, open_model
from quantkit.formats.gguf.container import read_header
from tests.helpers.folders import CONFIG, float_tensors, snapshot, write_folder
from tests.helpers.gguf_files import plan_of, round_to, stored_as, write_gguf

GGUF = FORMATS.get("gguf")
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
Q_NAME = "model.layers.0.self_attn.q_proj.weight"


def source(folder: Path, **changes: Any) -> Checkpoint:
    config = {**CONFIG, **changes}
    return open_model(write_folder(folder, float_tensors(config), config=config))


def written(folder: Path, kind: str = "F32", **changes: Any) -> tuple[Checkpoint, dict[str, Any]]:
    """A plan's values and the model they came from."""
    model = source(folder / "hf", **changes)
    return model, stored_as(model, kind)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read(kind: str, tied: bool, tmp_path: Path) -> None:
    model, values = written(tmp_path, kind, tie_word_embeddings=tied)
    plan = plan_of(model, values, companions={})
    write_gguf(plan, values, tmp_path / "m.gguf")
    again = open_model(tmp_path / "m.gguf")
    assert again.tensors.keys() == values.keys()
    for name, value in values.items():
        found = again.load(name)
        if isinstance(value, QuantizedTensor):
            assert isinstance(found, QuantizedTensor)
            assert found.equal(value), name
        else:
            assert found.dtype == value.dtype
            assert torch.equal(found, value), name
    assert again.is_tied is tied
    planned = sum(GGUF.nbytes(tensor) for tensor in plan.tensors)
    assert planned == sum(tensor.nbytes for tensor in read_header(tmp_path / "m.gguf").tensors)


def test_types_follow_the_rule_of_the_file_type(tmp_path: Path) -> None:
    for tied, embed in ((True, "Q8_0"), (False, "Q4_0")):
        model, values = written(tmp_path / str(tied), "Q4_0", tie_word_embeddings=tied)
        write_gguf(plan_of(model, values, companions={}), values, tmp_path / f"{tied}.gguf")
        again = open_model(tmp_path / f"{tied}.gguf")
        assert again.metadata["general.file_type"] == 2
        assert again.tensors["model.embed_tokens.weight"].stored == embed
        assert again.tensors["model.norm.weight"].stored == "F32"
        assert tied or again.tensors["lm_head.weight"].stored == "Q8_0"


def test_rows_of_q_and_k_stand_in_rotary_order(tmp_path: Path) -> None:
    """Against the formula of llama.cpp's converter, for floats, codes, scales and biases."""
    config = {**CONFIG, "attention_bias": True}
    tensors = float_tensors(config)
    for layer in range(2):
        for part, rows in (("q", 64), ("k", 32), ("v", 32), ("o", 64)):
            tensors[f"model.layers.{layer}.self_attn.{part}_proj.bias"] = torch.rand(rows)
    model = open_model(write_folder(tmp_path / "hf", tensors, config=config))

    def permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
        halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
        return halves.swapaxes(1, 2).reshape(weight.shape)

    from gguf import GGUFReader
    from gguf.quants import dequantize

    for kind in ("F32", "Q8_0"):
        values = stored_as(model, kind)
        write_gguf(plan_of(model, values, companions={}), values, tmp_path / f"{kind}.gguf")
        stored = {t.name: t for t in GGUFReader(tmp_path / f"{kind}.gguf").tensors}
        for part, heads in (("q", 4), ("k", 2)):
            for suffix in ("weight", "bias"):
                tensor = stored[f"blk.1.attn_{part}.{suffix}"]
                found = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
                value = values[f"model.layers.1.self_attn.{part}_proj.{suffix}"]
                plain = value.decode() if isinstance(value, QuantizedTensor) else value
                assert torch.equal(found, permuted(plain, heads))
        v = stored["blk.1.attn_v.bias"]
        assert torch.equal(
            torch.from_numpy(v.data.copy()), tensors["model.layers.1.self_attn.v_proj.bias"]
        )


def test_tensors_may_come_in_any_order(tmp_path: Path) -> None:
    model, values = written(tmp_path, "Q4_1")
    plan = plan_of(model, values, companions={})
    write_gguf(plan, values, tmp_path / "a.gguf")
    write_gguf(plan, dict(reversed(values.items())), tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_record_and_report_are_in_the_file(tmp_path: Path) -> None:
    model, values = written(tmp_path)
    write_gguf(plan_of(model, values, companions={}), values, tmp_path / "m.gguf")
    text = open_model(tmp_path / "m.gguf").metadata["quantkit.json"]
    assert json.loads(text) == {"recipe": "test", "note": "written by a test"}


def test_a_report_that_is_too_long_loses_its_largest_part_only(tmp_path: Path) -> None:
    model, values = written(tmp_path)
    with GGUF.writer(tmp_path / "m.gguf", plan_of(model, values, companions={})) as writer:
        for name, value in values.items():
            writer.put(name, value)
        writer.close({"kl": 0.5, "tensors": ["x" * 1000] * 1000})
    text = open_model(tmp_path / "m.gguf").metadata["quantkit.json"]
    assert json.loads(text) == {"recipe": "test", "kl": 0.5}


def test_derived_tensors_are_left_out(tmp_path: Path) -> None:
    model, values = written(tmp_path)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    values[name] = torch.ones(8)
    plan = plan_of(model, values, companions={})
    write_gguf(plan, values, tmp_path / "m.gguf")
    assert name not in open_model(tmp_path / "m.gguf").tensors
    assert GGUF.nbytes(PlannedTensor(name, (8,), None, torch.float32)) == 0


# What must not be written


def test_values_too_large_for_the_type_are_refused(tmp_path: Path) -> None:
    """C26: never an infinite value or scale in a file."""
    tensors = float_tensors()
    tensors[Q_NAME][3, 5] = 7e4
    tensors["model.layers.0.mlp.up_proj.weight"][2] *= 1e7
    model = open_model(write_folder(tmp_path / "hf", tensors))
    values = stored_as(model, "BF16")
    write_gguf(plan_of(model, values, companions={}), values, tmp_path / "bf16.gguf")
    again = open_model(tmp_path / "bf16.gguf")
    assert all(torch.isfinite(again.load_float(name)).all() for name in again.tensors)

    halves = {n: v.to(torch.float16) if v.dim() > 1 else v for n, v in tensors.items()}
    plan = plan_of(model, halves, companions={})
    with pytest.raises(ModelError, match=rf"{Q_NAME}.*70000.*F16"):
        write_gguf(plan, dict(tensors), tmp_path / "f16.gguf")
    assert not list(tmp_path.glob("f16*"))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_infinite_scales_are_refused(kind: str, tmp_path: Path) -> None:
    model, values = written(tmp_path, kind)
    name = "model.layers.1.mlp.down_proj.weight"
    good = values[name]
    part = "minimums" if good.minimums else "scales"
    bad = getattr(good, part)[0].clone()
    bad[0, 0] = float("inf")
    values[name] = replace(good, **{part: (bad,)})
    with pytest.raises(ModelError, match=f"{name} needs a scale too large"):
        write_gguf(plan_of(model, values, companions={}), values, tmp_path / "m.gguf")
    assert not list(tmp_path.glob("m.gguf*"))


def test_damaged_values_are_refused(tmp_path: Path) -> None:
    model, values = written(tmp_path)
    values["model.norm.weight"] = torch.full((64,), float("nan"))
    with pytest.raises(ModelError, match=r"model\.norm\.weight holds values that are not finite"):
        write_gguf(plan_of(model, values, companions={}), values, tmp_path / "m.gguf")


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    """C29: no last one wins."""
    model, values = written(tmp_path)
    plan = plan_of(model, values, companions={})
    twice = replace(plan, tensors=(*plan.tensors, plan.tensors[0]))
    with pytest.raises(ModelError, match=f"{plan.tensors[0].name} would both be"):
        GGUF.writer(tmp_path / "m.gguf", twice)
    padded = PlannedTensor("model.layers.00.input_layernorm.weight", (64,), None, torch.float32)
    with pytest.raises(ModelError, match=r"would both be 'blk\.0\.attn_norm\.weight'"):
        GGUF.writer(tmp_path / "m.gguf", replace(plan, tensors=(*plan.tensors, padded)))


@pytest.mark.parametrize(
    "name", ["tok_embeddings.weight", "model.layers.0.self_attn.z.weight", "model.layers.x.y.bias"]
)
def test_tensors_without_a_place_are_refused(name: str, tmp_path: Path) -> None:
    model, values = written(tmp_path)
    values[name] = torch.ones(4)
    with pytest.raises(ModelError, match=f"{name} has no place"):
        GGUF.writer(tmp_path / "m.gguf", plan_of(model, values, companions={}))


def test_long_names_are_refused(tmp_path: Path) -> None:
    model, values = written(tmp_path)
    name = f"model.layers.{'9' * 60}.input_layernorm.weight"
    values[name] = torch.ones(64)
    with pytest.raises(ModelError, match="at most 63 bytes"):
        GGUF.writer(tmp_path / "m.gguf", plan_of(model, values, companions={}))


def test_schemes_without_a_type_are_refused(tmp_path: Path) -> None:
    model, values = written(tmp_path)
    plan = plan_of(model, values, companions={})
    scheme = Scheme.parse("w4a16-g64")
    tensors = tuple(replace(t, scheme=scheme) if t.name == Q_NAME else t for t in plan.tensors)
    with pytest.raises(UsageError, match=f"{Q_NAME}.*w4a16-g64"):
        GGUF.writer(tmp_path / "m.gguf", replace(plan, tensors=tensors))
    assert not list(tmp_path.glob("m.gguf*"))


# The place


def test_an_output_that_exists_stays_as_it_is(tmp_path: Path) -> None:
    model, values = written(tmp_path)
    plan, out = plan_of(model, values, companions={}), tmp_path / "m.gguf"
    out.write_bytes(b"precious")
    with pytest.raises(UsageError, match=r"m\.gguf exists"):
        GGUF.writer(out, plan)
    before = snapshot(tmp_path)
    with pytest.raises(ModelError), GGUF.writer(out, plan, force=True) as writer:
        writer.put("model.norm.weight", torch.full((64,), float("inf")))
    assert snapshot(tmp_path) == before
    write_gguf(plan, values, out, force=True)
    assert open_model(out).format == "gguf"
    assert not [path for path in tmp_path.iterdir() if path.name not in ("hf", "m.gguf")]


def test_places_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C63: the message names the path and the cause, and nothing is left."""
    model, values = written(tmp_path)
    plan = plan_of(model, values, companions={})
    with pytest.raises(ResourceError, match="does not exist"):
        GGUF.writer(tmp_path / "none" / "m.gguf", plan)
    with pytest.raises(UsageError, match="/dev/full is not a regular file"):
        GGUF.writer(Path("/dev/full"), plan, force=True)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="not a regular file"):
        GGUF.writer(tmp_path / "folder", plan, force=True)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ResourceError, match=r"m\.gguf needs .* 1.0 kB free"):
        GGUF.writer(tmp_path / "m.gguf", plan)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "hf"]


LIMITED = """
import resource, sys
from pathlib import Path
from quantkit.errors import ResourceError
from quantkit.formats import open_model
from tests.helpers.gguf_files import plan_of, stored_as, write_gguf

model = open_model(sys.argv[1])
values = stored_as(model, "F32")
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    write_gguf(plan_of(model, values, companions={}), values, Path(sys.argv[2]))
except ResourceError as error:
    print(error.message)
    sys.exit(error.exit_code)
"""


def test_a_file_that_may_not_grow_is_refused_and_removed(tmp_path: Path) -> None:
    """C63: a size limit at half of what the file needs."""
    model, values = written(tmp_path)
    size = sum(GGUF.nbytes(tensor) for tensor in plan_of(model, values, companions={}).tensors)
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    script = [sys.executable, "-c", LIMITED, str(tmp_path / "hf"), str(tmp_path / "m.gguf")]
    done = subprocess.run(
        [*script, str(size // 2)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 4, done.stderr
    assert "m.gguf.partial: file too large" in done.stdout
    assert not list(tmp_path.glob("m.gguf*"))


def test_a_disk_that_fills_up_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, values = written(tmp_path)
    out = tmp_path / "m.gguf"
    out.write_bytes(b"precious")
    plan = plan_of(model, values, companions={})

    class Full(io.BufferedRandom):
        """A file on a disk that is full after the header."""

        def write(self, data: Any) -> int:
            if self.tell() > 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    def opened(path: Path, mode: str) -> Full:
        return Full(io.FileIO(path, "x+"))

    monkeypatch.setattr("pathlib.Path.open", opened)
    with pytest.raises(ResourceError, match=r"m\.gguf\.partial: no space left"):
        write_gguf(plan, values, out, force=True)
    monkeypatch.undo()
    assert out.read_bytes() == b"precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf", "m.gguf"]


def test_an_incomplete_output_never_appears(tmp_path: Path) -> None:
    model, values = written(tmp_path)
    plan = plan_of(model, values, companions={})
    with pytest.raises(AssertionError, match="never written"):
        write_gguf(plan, {Q_NAME: values[Q_NAME]}, tmp_path / "m.gguf")
    assert not list(tmp_path.glob("m.gguf*"))


def test_rounding_again_to_the_same_grid_changes_nothing(tmp_path: Path) -> None:
    """What the file decodes to lies on its grid, so a second pass gives the same file."""
    model, values = written(tmp_path, "Q4_1")
    write_gguf(plan_of(model, values, companions={}), values, tmp_path / "a.gguf")
    again = open_model(tmp_path / "a.gguf")
    weight = values[Q_NAME]
    assert isinstance(weight, QuantizedTensor)
    second = round_to(again.load_float(Q_NAME), weight.scheme)
    assert torch.allclose(second.decode(), weight.decode(), atol=1e-3)
