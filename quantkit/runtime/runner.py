"""Runner: computes a step. The engine knows no more of a model than this."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from quantkit.runtime.backend import AttentionMeta, Backend, ReferenceBackend
from quantkit.runtime.kv import KVSpec
from quantkit.runtime.model import Model
from quantkit.runtime.step import StepInput


class Runner(Protocol):
    """Computes steps; it owns the cache that the blocks of a step name."""

    def execute(self, step: StepInput) -> Tensor:
        """Run a step and return the logits [R, V] of its logit rows, float32 or wider."""
        ...


class ModelRunner:
    """Runs a model on a backend.

    Args:
        model: the decoder.
        num_blocks: blocks that requests may hold.
        block_size: tokens in a block.
        backend: None takes the reference.
    """

    def __init__(
        self, model: Model, num_blocks: int, block_size: int, backend: Backend | None = None
    ) -> None:
        self.model = model
        self.backend: Backend = ReferenceBackend() if backend is None else backend
        spec = KVSpec.of(model.config, block_size, model.dtype, model.device)
        self.kv = self.backend.alloc_kv(spec, num_blocks)

    @torch.inference_mode()
    def execute(self, step: StepInput) -> Tensor:
        model, backend = self.model, self.backend
        config = model.config
        meta = AttentionMeta.of(step, model.device)

        def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            backend.write_kv(self.kv, layer, k, v, meta)
            return backend.attention(
                q,
                self.kv,
                layer,
                meta,
                scale=config.attention_scale,
                window=config.windows[layer],
            )

        ids = torch.tensor(step.ids, device=model.device)
        positions = torch.tensor(step.positions, device=model.device)
        hidden = model.forward(ids, positions, attention)
        if not step.logit_rows:
            return hidden.new_empty((0, config.vocab_size))
        return model.logits(hidden[torch.tensor(step.logit_rows, device=model.device)])


MakeRunner = Callable[[Model, int, int], Runner]
"""make_runner(model, num_blocks, block_size)."""
