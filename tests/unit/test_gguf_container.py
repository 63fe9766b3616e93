"""Header and tensor table against gguf-py, which reads our files and writes files for us."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGMLQuantizationType

from quantkit.core.checkpoint import Checkpoint
from quantkit.errors import ModelError
from quantkit.formats import FORMATS, open_model
from quantkit.formats.gguf.container import read_header
from tests.helpers.folders import CONFIG, float_tensors, write_folder
from tests.helpers.gguf_files import plan_of, stored_as, write_gguf
from tests.helpers.gguf_raw import MODEL_METADATA, RawModel, model_tensors


def source(folder: Path, **changes: object) -> Checkpoint:
    config = {**CONFIG, **changes}
    return open_model(write_folder(folder, float_tensors(config), config=config))


def test_gguf_py_reads_what_we_write(tmp_path: Path) -> None:
    model = source(tmp_path / "hf")
    values = stored_as(model, "Q4_0")
    write_gguf(plan_of(model, values, companions={}), values, tmp_path / "a.gguf")
    reader = GGUFReader(tmp_path / "a.gguf")
    ours = read_header(tmp_path / "a.gguf")
    assert {k for k in reader.fields if not k.startswith("GGUF.")} == ours.metadata.keys()
    assert reader.fields["llama.embedding_length"].contents() == 64
    assert len(reader.tensors) == len(ours.tensors) == len(values)
    for theirs, mine in zip(reader.tensors, ours.tensors, strict=True):
        assert (theirs.name, theirs.tensor_type) == (mine.name, mine.type)
        assert tuple(reversed(theirs.shape.tolist())) == mine.shape
        assert (theirs.data_offset, theirs.n_bytes) == (mine.offset, mine.nbytes)
        assert mine.offset % 32 == 0


def test_we_read_what_gguf_py_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = GGUFWriter(path, "llama")
    numbers = {"u8": 255, "i8": -128, "u16": 65535, "i16": -32768, "i32": -(2**31), "u64": 2**63}
    writer.add_uint8("x.u8", 255)
    writer.add_int8("x.i8", -128)
    writer.add_uint16("x.u16", 65535)
    writer.add_int16("x.i16", -32768)
    writer.add_int32("x.i32", -(2**31))
    writer.add_uint64("x.u64", 2**63)
    writer.add_float64("x.f64", 0.1)
    writer.add_float32("x.f32", 0.5)
    writer.add_bool("x.yes", True)
    writer.add_string("x.text", "größe 🙂")
    writer.add_array("x.texts", ["a", "", "ü"])
    writer.add_array("x.bools", [True, False])
    writer.add_array("x.floats", [1.5, -2.0])
    writer.add_custom_alignment(64)
    writer.add_tensor("one", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("two", np.ones(5, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(path)
    for key, value in numbers.items():
        assert header.metadata[f"x.{key}"] == value
    assert header.metadata["x.f64"] == 0.1
    assert header.metadata["x.f32"] == 0.5
    assert header.metadata["x.yes"] is True
    assert header.metadata["x.text"] == "größe 🙂"
    assert header.metadata["x.texts"] == ["a", "", "ü"]
    assert header.metadata["x.bools"] == [True, False]
    assert header.metadata["x.floats"] == [1.5, -2.0]
    assert [(t.name, t.shape, t.offset % 64) for t in header.tensors] == [
        ("one", (2, 3), 0),
        ("two", (5,), 0),
    ]


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_any_alignment_is_read(tmp_path: Path, alignment: int) -> None:
    raw = RawModel(alignment=alignment)
    path = raw.write(tmp_path / "a.gguf")
    checkpoint = FORMATS.get("gguf").open(path)
    for name, value in model_tensors().items():
        if name == "token_embd.weight":
            assert torch.equal(checkpoint.load_float("model.embed_tokens.weight"), value)


def test_every_k_quant_and_iq_type_decodes_like_gguf_py(tmp_path: Path) -> None:
    """One tensor of each type that gguf-py can decode, read through the checkpoint."""
    from gguf.constants import GGML_QUANT_SIZES
    from gguf.quants import dequantize

    generator = np.random.default_rng(0)
    kinds = [
        k for k in GGMLQuantizationType if k.name.startswith(("Q", "IQ", "TQ", "MXFP", "NVFP"))
    ]
    unreadable = ("Q8_1", "Q8_K", "Q1_0")
    for kind in (k for k in kinds if k.name not in unreadable):
        size = GGML_QUANT_SIZES[kind][1]
        rows, blocks = 96, 256 // GGML_QUANT_SIZES[kind][0]
        data = generator.integers(0, 256, (rows, blocks * size), np.uint8)
        metadata = {
            **MODEL_METADATA,
            "llama.embedding_length": 256,
            "llama.attention.head_count": 4,
        }
        metadata["llama.attention.head_count_kv"] = 2
        raw = RawModel(metadata=metadata, tensors=model_tensors(hidden=256))
        raw.replace("blk.0.ffn_up.weight", kind, (96, 256), data.tobytes())
        checkpoint = open_model(raw.write(tmp_path / f"{kind.name}.gguf"))
        info = checkpoint.tensors["model.layers.0.mlp.up_proj.weight"]
        assert (info.stored, info.shape, info.nbytes) == (kind.name, (96, 256), data.nbytes)
        with np.errstate(all="ignore"):
            expected = dequantize(data, kind)
        found = checkpoint.load_float(info.name).numpy()
        assert found.dtype == np.float32
        assert np.array_equal(found, expected, equal_nan=True), kind.name


def test_split_model_is_read_as_one(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = GGUFWriter(path, "llama", split_max_tensors=4)
    tensors = model_tensors()
    for key, value in MODEL_METADATA.items():
        if key == "general.architecture":
            continue
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    for name, value in tensors.items():
        writer.add_tensor(name, value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert len(parts) > 2
    joined = open_model(parts[0])
    single = open_model(RawModel().write(tmp_path / "one.gguf"))
    assert joined.config == single.config
    assert joined.tensors.keys() == single.tensors.keys()
    for name in single.tensors:
        assert torch.equal(joined.load_float(name), single.load_float(name))

    with pytest.raises(ModelError, match="not the first file"):
        open_model(parts[1])
    parts[-1].rename(tmp_path / "aside")
    with pytest.raises(ModelError, match=f"{parts[-1].name} is missing"):
        open_model(parts[0])
    parts[-1].write_bytes(parts[1].read_bytes())
    with pytest.raises(ModelError, match="does not belong"):
        open_model(parts[0])


def test_a_file_that_is_replaced_after_opening_is_not_misread(tmp_path: Path) -> None:
    path = RawModel().write(tmp_path / "a.gguf")
    checkpoint = open_model(path)
    other = RawModel(tensors=model_tensors(seed=1)).write(tmp_path / "b.gguf")
    other.replace(path)
    with pytest.raises(ModelError, match="changed while it was being read"):
        checkpoint.load("model.norm.weight")
