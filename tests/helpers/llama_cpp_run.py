"""Stock llama.cpp through llama-cpp-python: logits and token ids of a GGUF file."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quantkit.runtime.linear import AnyLinear, PackedLinear
from quantkit.runtime.model import Model

_F32 = 0  # ggml's number for float32; llama.cpp keeps its cache in float16 unless told
_BLOCK = 32


@contextmanager
def opened(path: Path, **settings: Any) -> Iterator[Any]:
    """A loaded file; closed even when a test fails, since its destructor cannot be trusted."""
    import llama_cpp

    model = llama_cpp.Llama(str(path), n_threads=2, verbose=False, **settings)
    try:
        yield model
    finally:
        model.close()


def logits(path: Path, ids: Tensor) -> Tensor:
    """Logits [B, L, V] of windows of tokens [B, L], float64."""
    length = ids.shape[1]
    cache = {"type_k": _F32, "type_v": _F32}
    with opened(path, n_ctx=length, n_batch=length, logits_all=True, **cache) as model:
        found = []
        for window in ids.tolist():
            model.reset()
            model.eval(window)
            found.append(np.array(model.scores[:length], dtype=np.float64))
    return torch.from_numpy(np.stack(found))


def token_ids(path: Path, texts: Sequence[str]) -> list[list[int]]:
    """Token ids as a prompt gets them: special tokens understood, start token as the file says."""
    with opened(path, vocab_only=True) as model:
        return [model.tokenize(text.encode(), add_bos=True, special=True) for text in texts]


def mean_kl(reference: Tensor, other: Tensor) -> float:
    """Mean over positions of KL(reference || other), in nats."""
    p, q = reference.double().log_softmax(-1), other.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


@dataclass(frozen=True, eq=False)
class RoundedInput:
    """A quantized linear that sees its inputs as llama.cpp does: int8 in blocks of 32.

    Each block of 32 inputs is q * d with d = absmax / 127 kept in float16.
    """

    inner: PackedLinear

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, K] -> [T, N]."""
        blocks = x.reshape(*x.shape[:-1], -1, _BLOCK)
        step = blocks.abs().amax(-1, keepdim=True) / 127
        codes = torch.where(step > 0, torch.round(blocks / step), torch.zeros(()))
        return self.inner((codes * step.half().to(x.dtype)).reshape(x.shape))

    def take(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows of the matrix as floats."""
        return self.inner.take(ids, dtype)


def with_rounded_inputs(model: Model) -> Model:
    """The same model with every quantized linear's inputs rounded."""

    def rounded(linear: AnyLinear) -> Any:
        return RoundedInput(linear) if isinstance(linear, PackedLinear) else linear

    blocks = tuple(
        replace(block, linears={name: rounded(linear) for name, linear in block.linears.items()})
        for block in model.blocks
    )
    return replace(model, blocks=blocks, head=rounded(model.head))
