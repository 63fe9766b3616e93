"""Streamed safetensors files: every type, any order, little memory."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from quantkit.formats import open_model
from quantkit.formats.safetensors_io import Entry, SafetensorsWriter


def test_types_and_odd_shapes(tmp_path: Path) -> None:
    """Bytes equal the library's reading for every type; odd sizes do not shift their neighbors."""
    tensors = {
        "odd": torch.tensor([True, False, True]),
        "bytes": torch.arange(7, dtype=torch.uint8),
        "half": torch.randn(3, 5).half(),
        "brain": torch.randn(1, 3).bfloat16(),
        "wide": torch.randn(2, 2, dtype=torch.float64),
        "count": torch.tensor(7, dtype=torch.int64),
        "empty": torch.empty(0, 4),
        "eight": torch.randn(5).to(torch.float8_e4m3fn),
        "naïve 名": torch.randn(2),
    }
    entries = [Entry(n, t.dtype, tuple(t.shape)) for n, t in tensors.items()]
    file = SafetensorsWriter(tmp_path / "x.safetensors", entries)
    for name in reversed(tensors):
        file.put(name, tensors[name])
    file.close()
    loaded = load_file(tmp_path / "x.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        assert torch.equal(loaded[name].double(), tensor.double()), name
        assert loaded[name].data_ptr() % tensor.dtype.itemsize == 0


def anonymous_bytes() -> int:
    """Anonymous memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon in /proc/self/status")


def test_streaming_keeps_memory_small(tmp_path: Path) -> None:
    """160 MB go in and out, one tensor of 8 MB at a time."""
    values = {f"t{i}": torch.empty(0) for i in range(20)}
    shape = (1024, 2048)
    entries = [Entry(name, torch.float32, shape) for name in values]
    start = anonymous_bytes()
    file = SafetensorsWriter(tmp_path / "model.safetensors", entries)
    for i, name in enumerate(values):
        file.put(name, torch.full(shape, float(i)))
        assert anonymous_bytes() - start < 80_000_000
    file.close()
    (tmp_path / "config.json").write_text("{}")
    start = anonymous_bytes()
    opened = open_model(tmp_path)
    for i, name in enumerate(values):
        tensor = opened.load(name)
        assert isinstance(tensor, Tensor)
        assert float(tensor.sum()) == i * 1024 * 2048.0
        assert anonymous_bytes() - start < 16_000_000
