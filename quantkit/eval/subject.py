"""Subject: a model that can be evaluated, with its tokenizer and the size of its file."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from quantkit.core.checkpoint import Checkpoint
from quantkit.core.tokenizer import Tokenizer
from quantkit.errors import ResourceError, UsageError
from quantkit.formats import open_model
from quantkit.runtime.model import load_model


class Sizes(Protocol):
    """What evaluation needs of a model's config."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_positions(self) -> int: ...


class Decoder(Protocol):
    """What evaluation needs of a model; quantkit.runtime.model.Model has it."""

    @property
    def config(self) -> Sizes: ...

    def window_hidden(self, ids: Tensor) -> Tensor:
        """Final hidden states [B, L, C] of independent windows of tokens [B, L]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [R, V], float32 or wider, of hidden states [R, C]."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A model that can be evaluated.

    Attributes:
        name: as the user named it.
        load: reads the weights to a device: "cpu", "cuda", "cuda:1".
        num_bytes: bytes of all tensors in the file; None for a model that was made in memory.
        num_weights: how many weights those bytes hold.
    """

    name: str
    tokenizer: Tokenizer
    load: Callable[[str], Decoder]
    num_bytes: int | None = None
    num_weights: int | None = None

    @property
    def bits_per_weight(self) -> float | None:
        if self.num_bytes is None or not self.num_weights:
            return None
        return 8 * self.num_bytes / self.num_weights


Ref = str | Path | Checkpoint | Subject
"""A folder, a GGUF file, a hub id, an open checkpoint, or a subject made by hand."""


def open_subject(ref: Ref) -> Subject:
    """Open a model and read its tokenizer; its weights, in float32, only when loaded.

    Raises:
        ModelError: the model is damaged, incomplete or not supported.
    """
    if isinstance(ref, Subject):
        return ref
    checkpoint = ref if isinstance(ref, Checkpoint) else open_model(ref)
    checkpoint.require_model()
    return Subject(
        str(checkpoint.path if isinstance(ref, Checkpoint) else ref),
        Tokenizer.from_checkpoint(checkpoint),
        lambda device: load_model(checkpoint, device=device),
        sum(info.nbytes for info in checkpoint.tensors.values()),
        sum(torch.Size(info.shape).numel() for info in checkpoint.tensors.values()),
    )


def resolve_device(name: str) -> str:
    """`auto`, `cpu`, `cuda` or `cuda:N` as a device that is there.

    Raises:
        UsageError: another name.
        ResourceError: there is no such device.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return "cuda" if count else "cpu"
    kind, colon, number = name.partition(":")
    if name != "cpu" and (kind != "cuda" or bool(colon) != number.isdecimal()):
        raise UsageError(f"device is {name!r}", hint="one of: auto, cpu, cuda, cuda:N")
    if kind == "cuda" and int(number or 0) >= count:
        raise ResourceError(
            f"no device {name}: {count} CUDA devices found", hint="use --device cpu"
        )
    return name
