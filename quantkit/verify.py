"""Reopen a finished output and compare it with what was meant to be written."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quantkit.calibration.walk import Walk
from quantkit.core.checkpoint import Checkpoint
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.tokenizer import Tokenizer
from quantkit.errors import CheckFailed
from quantkit.formats import open_model

# Text whose ids show a wrong pre-tokenizer, a lost special token or a changed normalization.
PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "  two  spaces   before 12345 and\ttabs\r\nand 3.14159e-10",
    "def f(x):\n    return x ** 2  # comment\n\n\n",
    "naïve café — “quotes” … €100 x² Ω",
    "漢字かな交じり文 한국어 العربية हिन्दी 🙂👩‍👩‍👧",
    "<|im_start|>user\nHello<|im_end|>\n<s></s>[INST]",
)
DIALOG = (
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "And 3 + 3?"},
)
_TOLERANCE = 1e-3


@dataclass
class Fingerprints:
    """Digests of every tensor that was handed to the writer."""

    digests: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: Tensor | QuantizedTensor) -> None:
        """Remember one tensor."""
        self.digests[name] = digest(value)


def digest(value: Tensor | QuantizedTensor) -> str:
    """BLAKE2b over type, shape and bytes of a tensor, or of every part of a quantized one."""
    parts: Mapping[str, Tensor] = (
        value.tensors() if isinstance(value, QuantizedTensor) else {"value": value}
    )
    state = hashlib.blake2b(digest_size=16)
    for name, tensor in parts.items():
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        state.update(tensor.cpu().flatten().contiguous().view(torch.uint8).numpy().data)
    return state.hexdigest()


def verify_output(
    output: Path, fingerprints: Fingerprints, source: Checkpoint, walk: Walk | None
) -> dict[str, Any]:
    """Compare a finished output with the run that wrote it.

    Args:
        output: folder or file.
        fingerprints: of every tensor written.
        source: whose tokenizer and chat template the output must have.
        walk: at the last block's outputs, to compare hidden states; None if nothing was calibrated.

    Returns:
        What was compared, for the report.

    Raises:
        CheckFailed: something differs; the message names it.
    """
    written = open_model(output)
    _compare_tensors(output, written, fingerprints)
    result: dict[str, Any] = {"tensors": len(fingerprints.digests), "codes_equal": True}
    if walk is not None:
        result["hidden_difference"] = _compare_hidden(output, written, walk)
    result["token_ids_equal"] = _compare_tokenizers(output, source, written)
    return result


def _compare_tensors(output: Path, written: Checkpoint, fingerprints: Fingerprints) -> None:
    lost = sorted(fingerprints.digests.keys() - written.tensors.keys())
    if lost:
        raise CheckFailed(f"{output}: tensor {lost[0]} was written but cannot be read back")
    for name, wanted in fingerprints.digests.items():
        if digest(written.load(name)) != wanted:
            raise CheckFailed(f"{output}: tensor {name} reads back different from what was written")


def _compare_hidden(output: Path, written: Checkpoint, walk: Walk) -> float:
    """Largest difference of the first window's final hidden states, in standard deviations."""
    model = written.require_model()
    again = walk.restart(lambda ids: written.load_rows(f"{model.arch.embed}.weight", ids))
    for layer in range(model.num_layers):
        prefix = model.arch.block_prefix(layer)
        weights = {
            name[len(prefix) :]: written.load_float(name, torch.float32)
            for name in written.block(layer)
        }
        again.advance(weights, layer)
    wanted = walk.hidden[: len(again.hidden), : again.hidden.shape[1]]
    difference = float((again.hidden - wanted).abs().max() / wanted.std())
    if not difference <= _TOLERANCE:
        raise CheckFailed(
            f"{output}: reopened, it gives hidden states {difference:.2g} standard deviations off"
        )
    return difference


def _compare_tokenizers(output: Path, source: Checkpoint, written: Checkpoint) -> bool:
    before, after = Tokenizer.from_checkpoint(source), Tokenizer.from_checkpoint(written)
    for text in PROBES:
        if before.encode(text) != after.encode(text):
            raise CheckFailed(f"{output}: the tokenizer gives other ids for {json.dumps(text)}")
    if before.eos_ids != after.eos_ids:
        raise CheckFailed(
            f"{output}: end tokens are {after.eos_ids}, the source has {before.eos_ids}"
        )
    if _rendered(before, DIALOG) != _rendered(after, DIALOG):
        raise CheckFailed(f"{output}: the chat template renders another text")
    return True


def _rendered(tokenizer: Tokenizer, dialog: Sequence[Mapping[str, Any]]) -> str | None:
    if not tokenizer.has_chat_template:
        return None
    return tokenizer.render_chat(dialog, add_generation_prompt=True)
