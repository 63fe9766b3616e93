"""GgufWriter: streams a model into one GGUF file that appears whole or not at all."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from quantkit.core.output import OutputPlan
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.report import clean
from quantkit.errors import ModelError, UsageError
from quantkit.formats.access import writing
from quantkit.formats.destination import Destination
from quantkit.formats.gguf import names
from quantkit.formats.gguf.blocks import encode_blocks
from quantkit.formats.gguf.container import TensorEntry, read_header
from quantkit.formats.gguf.layout import lay_out
from quantkit.formats.gguf.types import BLOCKS, FLOATS


class GgufWriter:
    """Writer of one GGUF file; see ``core.output.Writer``.

    Header and tensor table come first, from the plan; each tensor then goes to its place, in any
    order.

    Args:
        path: final file.
        plan: everything that will be written.
        force: replace an earlier output.

    Attributes:
        warnings: what the file does not carry, one line each.

    Raises:
        UsageError: ``path`` is taken, or the container cannot hold the plan.
        ModelError: the container cannot hold the model or its tokenizer.
        ResourceError: the place cannot be written or has too little space.
    """

    def __init__(self, path: Path, plan: OutputPlan, *, force: bool = False) -> None:
        self._plan = plan
        self._layout = lay_out(plan)
        self.warnings = self._layout.warnings
        self._missing = set(self._layout.entries)
        self._heads = {"q": plan.model.num_heads, "k": plan.model.num_kv_heads}
        self._done = False
        if os.path.lexists(path) and not path.is_file():
            raise UsageError(f"{path} is not a regular file", hint="choose another output")
        self._place = Destination(path, force=force, needed=self._layout.size)
        with writing(self._place.partial):
            self._file = self._place.partial.open("xb")
        try:
            with writing(self._place.partial):
                self._file.truncate(self._layout.size)
            self._write(0, self._layout.header)
            for at, data in self._layout.constants.items():
                self._write(at, data)
        except BaseException:
            self._abort()
            raise

    def put(self, name: str, value: Tensor | QuantizedTensor) -> None:
        """Write one planned tensor; its bytes leave memory with this call.

        Raises:
            ModelError: a value is not finite, or too large for the type.
            ResourceError: the disk refuses.
        """
        if names.is_derived(name):
            return
        assert name in self._layout.entries, f"{name} is not in the plan"
        assert name in self._missing, f"{name} is written twice"
        entry = self._layout.entries[name]
        assert tuple(value.shape) == entry.shape, f"{name} is {value.shape}, not {entry.shape}"
        role = names.permuted_role(self._plan.model.arch, name)
        if role is not None:
            value = names.take_rows(value, names.row_order(entry.shape[0], self._heads[role]))
        if isinstance(value, QuantizedTensor):
            self._write(entry.offset, _quantized(name, value, entry))
        else:
            self._write(entry.offset, _floats(name, value, entry))
        self._missing.remove(name)

    def close(self, report: Mapping[str, Any]) -> None:
        """Write the report, check that no planned tensor is missing, move into place.

        Raises:
            ResourceError: the disk refuses; nothing is left under the final name.
        """
        assert not self._missing, f"never written: {', '.join(sorted(self._missing)[:3])}"
        room = self._layout.report_bytes
        text = _fitting({**self._plan.record, **report}, room)
        self._write(self._layout.report_at, text.ljust(room))
        with writing(self._place.partial):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        header = read_header(self._place.partial)
        written = {entry.name: (entry.type, entry.shape, entry.offset) for entry in header.tensors}
        for entry in self._layout.entries.values():
            assert written[entry.name] == (entry.type, entry.shape, entry.offset), entry.name
        self._place.commit()
        self._done = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._done:
            self._abort()

    def _write(self, at: int, data: bytes | memoryview) -> None:
        with writing(self._place.partial):
            self._file.seek(at)
            self._file.write(data)

    def _abort(self) -> None:
        with contextlib.suppress(OSError):  # what is still buffered may not fit either
            self._file.close()
        self._place.discard()


def _floats(name: str, value: Tensor, entry: TensorEntry) -> memoryview:
    """Bytes of a float tensor.

    Raises:
        ModelError: a value is not finite, or too large for the type.
    """
    dtype = FLOATS[entry.type]
    stored = value.detach().cpu().to(dtype).contiguous()
    if not _is_finite(stored):
        if _is_finite(value):
            largest = value.abs().max().item()
            raise ModelError(
                f"tensor {name} holds the value {largest:.6g}, too large for {entry.type.name}",
                hint="store it as BF16 or F32",
            )
        raise ModelError(
            f"tensor {name} holds values that are not finite", hint="the model is damaged"
        )
    return stored.view(torch.uint8).numpy().data


def _quantized(name: str, value: QuantizedTensor, entry: TensorEntry) -> memoryview:
    """Bytes of a quantized tensor.

    Raises:
        ModelError: a scale is not finite.
    """
    assert value.scheme == BLOCKS[entry.type], f"{name} is {value.scheme}, not {entry.type.name}"
    for part in (*value.scales, *value.minimums):
        if not _is_finite(part):
            raise ModelError(
                f"tensor {name} needs a scale too large for {entry.type.name}, which holds float16",
                hint="keep it as BF16 or F32 by a rule",
            )
    return encode_blocks(value, entry.type).data


def _is_finite(value: Tensor) -> bool:
    """Whether no element is infinite or NaN, in one pass and without a temporary tensor."""
    return all(bool(torch.isfinite(end)) for end in torch.aminmax(value))


def _fitting(document: Mapping[str, Any], room: int) -> bytes:
    """JSON text of at most ``room`` bytes; the largest entries go first where it is too long."""
    left: dict[str, Any] = clean(document)
    while True:
        text = json.dumps(left, ensure_ascii=False, allow_nan=False).encode()
        if len(text) <= room:
            return text
        largest = max(left, key=lambda key: len(json.dumps(left[key], ensure_ascii=False)))
        left = {key: value for key, value in left.items() if key != largest}
