"""FolderWriter: streams a model into a Hugging Face folder that appears whole or not at all."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from quantkit.core.output import OutputPlan, PlannedTensor
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.report import dumps
from quantkit.errors import UsageError
from quantkit.formats.access import writing
from quantkit.formats.codec import Codec, float_entry
from quantkit.formats.companions import OWN_FILES, RECORD
from quantkit.formats.destination import Destination, sync_folder, write_file
from quantkit.formats.header import read_header
from quantkit.formats.json_file import CONFIG, QUANTIZATION_KEYS
from quantkit.formats.safetensors_io import Entry, SafetensorsWriter, layout
from quantkit.formats.weights import INDEX, SINGLE, check_plain_name

# Settings that are true of the source only: its quantization, and code that is never copied.
_DROPPED = (*QUANTIZATION_KEYS, "auto_map")


class FolderWriter:
    """Writer of every container that is a folder; see ``core.output.Writer``.

    Args:
        path: final folder.
        plan: everything that will be written.
        codec: spelling of the quantized tensors.
        force: replace an earlier output.

    Raises:
        UsageError: ``path`` is taken, or the container cannot hold the plan.
        ResourceError: the place cannot be written or has too little space.
    """

    def __init__(self, path: Path, plan: OutputPlan, codec: Codec, *, force: bool = False) -> None:
        self._plan = plan
        self._codec = codec
        self._encoder = codec.encoder(plan)
        self._planned = {tensor.name: tensor for tensor in plan.tensors}
        assert len(self._planned) == len(plan.tensors), "the plan names a tensor twice"
        self._missing = set(self._planned)
        groups = [_entries(codec, tensor) for tensor in plan.tensors]
        self._shards = name_shards(split_shards(groups, plan.shard_bytes))
        self._file_of = {
            entry.name: file for file, entries in self._shards.items() for entry in entries
        }
        self._open: dict[str, SafetensorsWriter] = {}
        self._done = False
        _check_companions(plan.companions)
        self._place = Destination(path, force=force, needed=self._needed_bytes())
        try:
            with writing(self._place.partial):
                self._place.partial.mkdir()
            for name, data in plan.companions.items():
                write_file(self._place.partial / name, data)
        except BaseException:
            self._place.discard()
            raise

    def put(self, name: str, value: Tensor | QuantizedTensor) -> None:
        """Write one planned tensor; its bytes leave memory with this call.

        Raises:
            ModelError: a value does not fit the container.
            ResourceError: the disk refuses.
        """
        assert name in self._planned, f"{name} is not in the plan"
        assert name in self._missing, f"{name} is written twice"
        planned = self._planned[name]
        if isinstance(value, QuantizedTensor):
            assert value.scheme == planned.scheme, f"{name} is {value.scheme}, not {planned.scheme}"
            assert value.shape == planned.shape, f"{name} is {value.shape}, not {planned.shape}"
            parts = self._encoder.encode(name, value)
        else:
            assert planned.scheme is None, f"{name} is a float tensor, planned as {planned.scheme}"
            parts = {name: value}
        for part, tensor in parts.items():
            self._shard(self._file_of[part]).put(part, tensor)
        self._missing.remove(name)
        for file in {self._file_of[part] for part in parts}:
            if self._open[file].is_complete:
                self._open.pop(file).close()

    def close(self, report: Mapping[str, Any]) -> None:
        """Write config and report, check that no planned tensor is missing, move into place.

        Raises:
            ResourceError: the disk refuses; nothing is left under the final name.
        """
        assert not self._missing, f"never written: {', '.join(sorted(self._missing)[:3])}"
        partial = self._place.partial
        config = _output_config(self._plan)
        block = self._encoder.quantization_config()
        if block is not None:
            config["quantization_config"] = block
            if self._codec.settings_file:
                self._write_json(self._codec.settings_file, block)
        self._write_json(CONFIG, config)
        if len(self._shards) > 1:
            total = sum(entry.nbytes for entries in self._shards.values() for entry in entries)
            index = {"metadata": {"total_size": total}, "weight_map": self._file_of}
            self._write_json(INDEX, index)
        self._write_json(RECORD, {**self._plan.record, **report})
        for file, entries in self._shards.items():
            written = read_header(partial / file)
            expected = {entry.name: (entry.dtype, entry.shape) for entry in entries}
            assert {n: (t.dtype, t.shape) for n, t in written.items()} == expected, file
        sync_folder(partial)
        self._place.commit()
        self._done = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._done:
            for shard in self._open.values():
                shard.abort()
            self._place.discard()

    def _shard(self, file: str) -> SafetensorsWriter:
        if file not in self._open:
            path = self._place.partial / file
            self._open[file] = SafetensorsWriter(path, self._shards[file])
        return self._open[file]

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        write_file(self._place.partial / name, (dumps(value) + "\n").encode("utf-8"))

    def _needed_bytes(self) -> int:
        """Weights and their headers to the byte, companions, and a little for config and report."""
        tensors = sum(
            len(layout(entries)[0]) + sum(entry.nbytes for entry in entries)
            for entries in self._shards.values()
        )
        return tensors + sum(len(data) for data in self._plan.companions.values()) + 1_000_000


def split_shards(groups: Sequence[Sequence[Entry]], limit: int) -> list[list[Entry]]:
    """Fill shards of at most ``limit`` bytes in order; the parts of one tensor stay together."""
    shards: list[list[Entry]] = []
    used = 0
    for group in groups:
        size = sum(entry.nbytes for entry in group)
        if not shards or (used + size > limit and used > 0):
            shards.append([])
            used = 0
        shards[-1].extend(group)
        used += size
    return shards


def name_shards(shards: Sequence[list[Entry]]) -> dict[str, list[Entry]]:
    """File name of each shard, as transformers names them."""
    if len(shards) == 1:
        return {SINGLE: shards[0]}
    count = len(shards)
    return {f"model-{i:05d}-of-{count:05d}.safetensors": s for i, s in enumerate(shards, start=1)}


def _entries(codec: Codec, tensor: PlannedTensor) -> tuple[Entry, ...]:
    if tensor.scheme is None:
        return (float_entry(tensor),)
    reason = codec.admits(tensor.scheme, tensor.shape)
    if reason:
        raise UsageError(f"{tensor.name} does not fit the {codec.name} container: {reason}")
    return codec.entries(tensor)


def _output_config(plan: OutputPlan) -> dict[str, Any]:
    """config.json for what is written: the number type is the one most float weights have."""
    config = {key: value for key, value in plan.config.items() if key not in _DROPPED}
    sizes: Counter[torch.dtype] = Counter()
    for tensor in plan.tensors:
        if tensor.scheme is None and tensor.dtype.is_floating_point:
            sizes[tensor.dtype] += float_entry(tensor).nbytes
    if sizes:
        key = "torch_dtype" if "torch_dtype" in config else "dtype"
        config[key] = str(sizes.most_common(1)[0][0]).removeprefix("torch.")
    return config


def _check_companions(companions: Mapping[str, bytes]) -> None:
    for name in companions:
        check_plain_name(name, "companion file")
        assert name not in OWN_FILES and not name.endswith((".safetensors", ".index.json")), name
