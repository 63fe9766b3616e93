"""Opening a GGUF file as a Checkpoint: every tensor under its Hugging Face name, read on demand."""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize
from torch import Tensor

from quantkit.archs import model_config
from quantkit.core.arch import Arch
from quantkit.core.checkpoint import Checkpoint, TensorInfo
from quantkit.core.config import ModelConfig
from quantkit.core.qtensor import QuantizedTensor
from quantkit.errors import ModelError
from quantkit.formats.access import reading
from quantkit.formats.complete import linear_shape, required_tensors
from quantkit.formats.gguf import names
from quantkit.formats.gguf.blocks import Bytes, decode_blocks
from quantkit.formats.gguf.config_read import find_arch, read_config
from quantkit.formats.gguf.container import Header, TensorEntry
from quantkit.formats.gguf.fields import Fields
from quantkit.formats.gguf.rope import Factors
from quantkit.formats.gguf.split import read_joined
from quantkit.formats.gguf.tokenizer_read import read_companions
from quantkit.formats.gguf.types import BLOCKS, FLOATS, GgmlType, can_decode

_VALUES_AT_ONCE = 1 << 22


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file, or the first file of a split model.

    Raises:
        ModelError: the file is damaged, incomplete or not supported.
    """
    header = read_joined(path)
    prefix = Fields(path, header.metadata).text("general.architecture")
    fields = Fields(path, header.metadata, prefix)
    arch = find_arch(fields)
    entries = _hf_entries(header, arch)
    embed = entries.get(f"{arch.embed}.weight")
    if embed is None or len(embed.shape) != 2:
        raise ModelError(f"{path} has no matrix 'token_embd.weight'")
    blocks = fields.integer("{a}.block_count")
    if blocks > len(entries):  # asked before anything is made for every block
        raise ModelError(
            f"{path}: the metadata declares {blocks} blocks, the file holds {len(entries)} tensors"
        )
    config = read_config(
        fields,
        arch,
        entries,
        vocab_size=embed.shape[0],
        dtype=_main_dtype(entries.values()),
        rope_factors=_rope_factors(header),
    )
    try:
        model = model_config(config)
    except ModelError as error:
        reason = error.message.replace("config.json", "the metadata")
        raise ModelError(f"{path}: {reason}", hint=error.hint) from None
    assert model is not None
    _check_complete(path, model, entries)
    coded = any(entry.type not in FLOATS for entry in entries.values())
    return Checkpoint(
        path=path,
        format="gguf",
        config=config,
        model=model,
        tensors={name: _info(name, entry) for name, entry in entries.items()},
        reader=_reader(model, entries),
        companion_reader=lambda: read_companions(fields, config),
        quant_method="gguf" if coded else None,
        metadata=header.metadata,
    )


def _hf_entries(header: Header, arch: Arch) -> dict[str, TensorEntry]:
    """The tensor table under Hugging Face names; every tensor must have a place."""
    found: dict[str, TensorEntry] = {}
    decodable: dict[GgmlType, bool] = {}
    for entry in header.tensors:
        if entry.name == names.ROPE_FREQS:
            continue
        name = names.to_hf(arch, entry.name)
        if name is None:
            raise ModelError(
                f"{header.path}: tensor {entry.name!r} has no place in architecture "
                f"{arch.gguf_arch!r}",
                hint="the file may need a newer quantkit",
            )
        if entry.type not in decodable:
            decodable[entry.type] = can_decode(entry.type)
        if not decodable[entry.type]:
            raise ModelError(
                f"{header.path}: tensor {entry.name!r} has type {entry.type.name}, "
                "which cannot be decoded"
            )
        found[name] = entry
    return found


def _check_complete(path: Path, model: ModelConfig, entries: Mapping[str, TensorEntry]) -> None:
    """Every tensor that the metadata asks for is there in the right shape, and no other."""
    arch = model.arch
    expected = required_tensors(model)
    expected.setdefault(f"{arch.head}.weight", (model.vocab_size, model.hidden_size))
    for layer in range(model.num_layers):
        for spec in arch.linears:
            bias = f"{arch.block_prefix(layer)}{spec.name}.bias"
            expected[bias] = linear_shape(model, spec.role)[:1]
    optional = {f"{arch.head}.weight", *(name for name in expected if name.endswith(".bias"))}
    for name, shape in expected.items():
        entry = entries.get(name)
        if entry is None and name not in optional:
            raise ModelError(
                f"{path} has no tensor {names.to_gguf(arch, name)!r} ({name})",
                hint="the file does not hold a complete model",
            )
        if entry is not None and entry.shape != shape:
            raise ModelError(
                f"{path}: tensor {entry.name!r} has shape {list(entry.shape)}, "
                f"the metadata asks for {list(shape)}"
            )
    for name, entry in entries.items():
        if name not in expected:
            raise ModelError(
                f"{path}: the metadata describes no tensor {entry.name!r} ({name})",
                hint="metadata and weights come from different models",
            )


def _rope_factors(header: Header) -> Factors | None:
    entry = next((e for e in header.tensors if e.name == names.ROPE_FREQS), None)
    if entry is None:
        return None
    if entry.type is not GgmlType.F32 or len(entry.shape) != 1:
        raise ModelError(f"{header.path}: tensor {entry.name!r} is not a vector of F32")
    return _read_bytes(entry).view("<f4")


def _main_dtype(entries: Iterable[TensorEntry]) -> torch.dtype:
    """The float type of most values of a float file; a quantized one decodes to float32."""
    sizes: Counter[torch.dtype] = Counter()
    for entry in entries:
        if len(entry.shape) > 1:
            sizes[FLOATS.get(entry.type, torch.float32)] += math.prod(entry.shape)
    return sizes.most_common(1)[0][0]


def _info(name: str, entry: TensorEntry) -> TensorInfo:
    return TensorInfo(
        name=name,
        shape=entry.shape,
        stored=entry.type.name,
        dtype=FLOATS.get(entry.type, torch.float32),
        scheme=BLOCKS.get(entry.type) if len(entry.shape) > 1 else None,
        nbytes=entry.nbytes,
    )


def _reader(
    model: ModelConfig, entries: Mapping[str, TensorEntry]
) -> Callable[[str], Tensor | QuantizedTensor]:
    """Function that reads one tensor by its Hugging Face name."""
    heads = {"q": model.num_heads, "k": model.num_kv_heads}
    files = {entry.path: _stamp(os.stat(entry.path)) for entry in entries.values()}

    def read(name: str) -> Tensor | QuantizedTensor:
        entry = entries[name]
        value = _decode(entry, _read_bytes(entry, files[entry.path]))
        role = names.permuted_role(model.arch, name)
        if role is None:
            return value
        return names.take_rows(value, torch.argsort(names.row_order(entry.shape[0], heads[role])))

    return read


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read_bytes(entry: TensorEntry, stamp: tuple[int, ...] | None = None) -> Bytes:
    """The bytes of one tensor. A file replaced since it was opened is refused, not misread."""
    with reading(entry.path), entry.path.open("rb") as stream:
        if stamp is not None and _stamp(os.fstat(stream.fileno())) != stamp:
            raise ModelError(
                f"{entry.path} changed while it was being read (tensor {entry.name!r})"
            )
        data = np.fromfile(stream, np.uint8, entry.nbytes, offset=entry.offset)
    if len(data) != entry.nbytes:
        raise ModelError(f"{entry.path}: tensor {entry.name!r} is cut")
    return data


def _decode(entry: TensorEntry, data: Bytes) -> Tensor | QuantizedTensor:
    if entry.type in FLOATS:
        return torch.from_numpy(data).view(FLOATS[entry.type]).reshape(entry.shape)
    if entry.type in BLOCKS and len(entry.shape) > 1:
        return decode_blocks(data, entry.type, entry.shape)
    block, size = GGML_QUANT_SIZES[entry.type]
    blocks = data.reshape(-1, size)
    values = np.empty((len(blocks), block), np.float32)
    step = max(1, _VALUES_AT_ONCE // block)
    with np.errstate(all="ignore"):  # damaged scales give infinities, which are checked elsewhere
        for start in range(0, len(blocks), step):
            part = blocks[start : start + step]
            values[start : start + step] = dequantize(part, entry.type)
    return torch.from_numpy(values).reshape(entry.shape)
