"""Small model folders written straight from tensors, and plans to write them again.

No transformers is needed, so that tests of files stay fast.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from quantkit.archs import model_config
from quantkit.core.output import OutputPlan, PlannedTensor
from quantkit.core.qtensor import DTYPES, QuantizedTensor
from quantkit.core.scheme import Scheme
from quantkit.formats.complete import required_tensors

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


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes, to show that nothing changed."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
