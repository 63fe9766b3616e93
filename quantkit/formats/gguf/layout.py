"""Where everything of a GGUF output goes, decided and checked before the first byte is written."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from quantkit.core.arch import Arch
from quantkit.core.output import OutputPlan
from quantkit.core.report import dumps
from quantkit.errors import ModelError
from quantkit.formats.gguf import names
from quantkit.formats.gguf.container import (
    DEFAULT_ALIGNMENT,
    MAX_NAME_BYTES,
    TensorEntry,
    align,
    storage_bytes,
)
from quantkit.formats.gguf.encode import MetadataBuilder, encode_header, string_offset
from quantkit.formats.gguf.metadata import write_model
from quantkit.formats.gguf.rope import llama3_factors
from quantkit.formats.gguf.tokenizer_files import read_files
from quantkit.formats.gguf.tokenizer_write import write_tokenizer
from quantkit.formats.gguf.types import GgmlType, type_of

REPORT_KEY = "quantkit.json"
"""Metadata key of what quantkit records about its output; a JSON text padded with spaces."""

_REPORT_BYTES, _REPORT_BYTES_PER_TENSOR = 16_384, 512
# Biases that llama.cpp looks for, per architecture.
_BIASED: Mapping[str, frozenset[str]] = {
    "llama": frozenset(("q", "k", "v", "o", "gate", "up", "down")),
    "qwen2": frozenset(("q", "k", "v")),
}


@dataclass(frozen=True)
class Layout:
    """The parts of the file.

    Attributes:
        header: bytes up to the data section; the report is all spaces.
        report_at: where the report begins.
        report_bytes: room for it.
        entries: Hugging Face name -> where its data goes.
        constants: data of tensors that follow from the config: place -> bytes.
        size: bytes of the file.
        warnings: what the file will not carry, one line each.
    """

    header: bytes
    report_at: int
    report_bytes: int
    entries: dict[str, TensorEntry]
    constants: dict[int, bytes]
    size: int
    warnings: tuple[str, ...]


def lay_out(plan: OutputPlan) -> Layout:
    """Decide the whole file.

    Raises:
        ModelError: the container cannot hold the model, its tokenizer or one of its tensors.
        UsageError: a tensor is planned as a type that the container does not have.
    """
    entries = _entries(plan)
    embed = entries.get(f"{plan.model.arch.embed}.weight")
    rows = plan.model.vocab_size if embed is None else embed.shape[0]
    tokens = MetadataBuilder()
    warnings, strips = write_tokenizer(tokens, read_files(plan.companions), plan.config, rows)
    metadata = MetadataBuilder()
    warnings = write_model(metadata, plan, vocab_size=rows, phi3_name=strips) + warnings
    metadata.entries |= tokens.entries
    room = _REPORT_BYTES + _REPORT_BYTES_PER_TENSOR * len(entries) + len(dumps(plan.record))
    metadata.text(REPORT_KEY, " " * room)
    table = list(entries.values())
    constants = {}
    if plan.model.rope.kind == "llama3":
        factors = llama3_factors(plan.model.rope).astype("<f4").tobytes()
        at = align(table[-1].offset + table[-1].nbytes, DEFAULT_ALIGNMENT) if table else 0
        shape = (plan.model.rope.dim // 2,)
        table.append(replace(_entry(names.ROPE_FREQS, GgmlType.F32, shape), offset=at))
        constants[at] = factors
    header = encode_header(metadata, table)
    return Layout(
        header=header,
        report_at=string_offset(metadata, REPORT_KEY),
        report_bytes=room,
        entries={n: replace(e, offset=e.offset + len(header)) for n, e in entries.items()},
        constants={at + len(header): data for at, data in constants.items()},
        size=len(header) + align(table[-1].offset + table[-1].nbytes, DEFAULT_ALIGNMENT),
        warnings=tuple(warnings),
    )


def check_plan(plan: OutputPlan) -> tuple[str, ...]:
    """What a GGUF output of this plan will not carry, one line each; nothing is written.

    Raises:
        ModelError: the container cannot hold the model, its tokenizer or one of its tensors.
        UsageError: a tensor is planned as a type that the container does not have.
    """
    return lay_out(plan).warnings


def _entries(plan: OutputPlan) -> dict[str, TensorEntry]:
    """The tensor table under Hugging Face names; offsets count from the data section."""
    found: dict[str, TensorEntry] = {}
    taken: dict[str, str] = {}
    at = 0
    for tensor in plan.tensors:
        if names.is_derived(tensor.name):
            continue
        name = _gguf_name(plan.model.arch, tensor.name)
        if name in taken:
            raise ModelError(
                f"tensors {taken[name]} and {tensor.name} would both be {name!r} in GGUF"
            )
        if len(name.encode()) > MAX_NAME_BYTES:
            raise ModelError(
                f"tensor {tensor.name}: GGUF names have at most {MAX_NAME_BYTES} bytes, "
                f"{name!r} is longer"
            )
        taken[name] = tensor.name
        entry = replace(_entry(name, type_of(tensor), tensor.shape), offset=at)
        found[tensor.name] = entry
        at = align(at + entry.nbytes, DEFAULT_ALIGNMENT)
    return found


def _entry(name: str, kind: GgmlType, shape: tuple[int, ...]) -> TensorEntry:
    return TensorEntry(name, kind, shape, 0, storage_bytes(kind, shape), Path())


def _gguf_name(arch: Arch, name: str) -> str:
    found = names.to_gguf(arch, name)
    if found is not None and name.endswith(".bias"):
        allowed = _BIASED.get(arch.gguf_arch, frozenset())
        path = name.removesuffix(".bias")
        if not any(path.endswith("." + s.name) and s.role in allowed for s in arch.linears):
            found = None
    if found is None:
        raise ModelError(
            f"tensor {name} has no place in GGUF's architecture {arch.gguf_arch!r}",
            hint="choose another format, or drop the tensor from the model",
        )
    return found
