"""Small model folders written straight from tensors, and plans to write them again.

No transformers is needed, so that tests of files stay fast.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from quantkit.archs import model_config
from quantkit.core.output import OutputPlan, PlannedTensor, Writer
from quantkit.core.qtensor import DTYPES, QuantizedTensor
from quantkit.core.scheme import Scheme
from quantkit.formats import FORMATS, open_model
from quantkit.formats.complete import required_tensors

Values = Mapping[str, Tensor | QuantizedTensor] | Mapping[str, Tensor]

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
COMPANIONS = {
    "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b"{}",
    "generation_config.json": b'{"eos_token_id": 1}',
    "chat_template.jinja": b"{{ messages }}",
    "LICENSE": b"as is",
}


def float_tensors(config: Mapping[str, Any] = CONFIG, *, seed: int = 0) -> dict[str, Tensor]:
    """Random float32 tensors of every name that the config asks for."""
    model = model_config(config)
    assert model is not None
    generator = torch.Generator().manual_seed(seed)
    return {
        name: 0.3 * torch.randn(shape, generator=generator)
        for name, shape in required_tensors(model).items()
    }


def write_folder(
    folder: Path,
    tensors: Mapping[str, Tensor],
    *,
    config: Mapping[str, Any] = CONFIG,
    shards: int = 1,
) -> Path:
    """Write a folder with the safetensors library; tensors are dealt to the shards in order."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name, data in COMPANIONS.items():
        (folder / name).write_bytes(data)
    if shards == 1:
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names = list(tensors)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = names[i * len(names) // shards : (i + 1) * len(names) // shards]
        save_file({name: tensors[name] for name in part}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def random_quantized(
    scheme: Scheme, shape: tuple[int, int], *, seed: int = 0, min_zero: int = 0
) -> QuantizedTensor:
    """Random codes, scales and zero points of a one-level scheme; every code value may occur."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = shape
    level = scheme.levels[0]
    groups = level.num_groups(columns)
    codes = torch.randint(0, scheme.max_code + 1, shape, generator=generator, dtype=torch.uint8)
    scales = 0.01 + 0.1 * torch.rand(rows, groups, generator=generator)
    zeros = None
    if scheme.offset == "zero":
        zeros = torch.randint(
            min_zero, scheme.max_code + 1, (rows, groups), generator=generator, dtype=torch.uint8
        )
    return QuantizedTensor(scheme, codes, (scales.to(DTYPES[level.dtype]),), zeros)


def plan_for(
    values: Mapping[str, Tensor | QuantizedTensor],
    *,
    config: Mapping[str, Any] = CONFIG,
    shard_bytes: int = 5_000_000_000,
    companions: Mapping[str, bytes] = COMPANIONS,
) -> OutputPlan:
    """The plan that writes exactly these values."""
    model = model_config(config)
    assert model is not None
    planned = []
    for name, value in values.items():
        quantized = isinstance(value, QuantizedTensor)
        planned.append(
            PlannedTensor(
                name,
                tuple(value.shape),
                value.scheme if quantized else None,
                torch.float16 if quantized else value.dtype,
            )
        )
    return OutputPlan(config, model, tuple(planned), companions, {"recipe": "test"}, shard_bytes)


def quantize_linears(
    tensors: Mapping[str, Tensor], schemes: Mapping[str, Scheme] | Scheme
) -> dict[str, Tensor | QuantizedTensor]:
    """Replace block linears by random quantized tensors.

    Args:
        tensors: a model's float tensors.
        schemes: one for all, or by the last part of a linear's path; others stay float.
    """
    found: dict[str, Tensor | QuantizedTensor] = {}
    for seed, (name, tensor) in enumerate(tensors.items()):
        path = name.removesuffix(".weight").rpartition(".")[2]
        scheme = schemes if isinstance(schemes, Scheme) else schemes.get(path)
        if scheme is None or not path.endswith("_proj") or not name.endswith(".weight"):
            found[name] = tensor
        else:
            found[name] = random_quantized(scheme, (tensor.shape[0], tensor.shape[1]), seed=seed)
    return found


def put_all(writer: Writer, values: Values) -> None:
    """Put every value."""
    for name, value in values.items():
        writer.put(name, value)


def write_model(path: Path, values: Values, *, force: bool = False, **options: object) -> Path:
    """Write values with the writer of the container that fits them."""
    packed = any(isinstance(value, QuantizedTensor) for value in values.values())
    format = FORMATS.get("gptq" if packed else "hf")
    plan = plan_for(values, **options)  # type: ignore[arg-type]
    with format.writer(path, plan, force=force) as writer:
        put_all(writer, values)
        writer.close({"result": 1.5})
    return path


def assert_holds(path: Path, values: Values) -> None:
    """The folder opens and holds exactly these values, for us and for the safetensors library."""
    opened = open_model(path)
    assert set(opened.tensors) == set(values)
    for name, value in values.items():
        loaded = opened.load(name)
        if isinstance(value, QuantizedTensor):
            assert isinstance(loaded, QuantizedTensor)
            assert loaded.equal(value)
        else:
            assert torch.equal(opened.load_float(name), value)
    stored: dict[str, Tensor] = {}
    for file in sorted(path.glob("*.safetensors")):
        part = load_file(file)
        assert not part.keys() & stored.keys()
        stored |= part
        with safe_open(file, framework="pt") as handle:
            assert handle.metadata() == {"format": "pt"}
    for name, value in values.items():
        if isinstance(value, Tensor):
            assert torch.equal(stored[name], value)
    index = path / "model.safetensors.index.json"
    if index.exists():
        assert set(json.loads(index.read_text())["weight_map"]) == set(stored)


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes, to show that nothing changed."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
