"""Model: a checkpoint loaded for one device, as the engine and the evaluation run it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from quantkit.core.checkpoint import Checkpoint
from quantkit.core.config import ModelConfig
from quantkit.core.qtensor import QuantizedTensor
from quantkit.errors import ModelError
from quantkit.formats.complete import check_complete
from quantkit.models.attention import attend_windows
from quantkit.models.block import block
from quantkit.models.norm import rms_norm
from quantkit.models.rope import rotary
from quantkit.runtime.linear import AnyLinear, prepare_linear

LayerAttention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""attention(layer, q [T, H, D], k [T, Hk, D], v [T, Hk, D]) -> [T, H, D]."""


@dataclass(frozen=True, eq=False)
class LoadedBlock:
    """One block: its linears by name, and its other tensors by path."""

    linears: Mapping[str, AnyLinear]
    weights: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Model:
    """A decoder in memory. Quantized linears stay packed.

    Attributes:
        dtype: type of the hidden states.
        embedding: rows are the token embeddings.
        head: the output matrix; the same object as ``embedding`` when tied.
    """

    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    embedding: AnyLinear
    blocks: tuple[LoadedBlock, ...]
    norm: Tensor
    head: AnyLinear

    @torch.inference_mode()
    def forward(self, ids: Tensor, positions: Tensor, attention: LayerAttention) -> Tensor:
        """Final hidden states, normed.

        Args:
            ids: token ids [T], any mix of sequences.
            positions: position of each token in its sequence [T].
            attention: mixes the tokens of each sequence.

        Returns:
            [T, C] in the model's type.
        """
        x = self.embedding.take(ids.to(self.device), self.dtype)
        turn = rotary(self.config.rope, positions.to(self.device))
        for layer, loaded in enumerate(self.blocks):

            def attend(q: Tensor, k: Tensor, v: Tensor, layer: int = layer) -> Tensor:
                return attention(layer, q, k, v)

            def linear(name: str, h: Tensor, loaded: LoadedBlock = loaded) -> Tensor:
                return loaded.linears[name](h)

            x = block(self.config, loaded.weights, x, turn, attend, linear)
        return rms_norm(x, self.norm, self.config.norm_eps)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [R, V] of hidden states [R, C], in float32 or wider."""
        return self.head(hidden.to(torch.promote_types(self.dtype, torch.float32)))

    def window_hidden(self, ids: Tensor) -> Tensor:
        """Hidden states [B, L, C] of independent windows of tokens [B, L], without a cache."""
        count, length = ids.shape
        positions = torch.arange(length).repeat(count)

        def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (x.reshape(count, length, *x.shape[1:]) for x in (q, k, v))
            window = self.config.windows[layer]
            return attend_windows(q, k, v, self.config.attention_scale, window).flatten(0, 1)

        return self.forward(ids.flatten(), positions, attention).reshape(count, length, -1)

    def window_logits(self, ids: Tensor) -> Tensor:
        """Logits [B, L, V] of independent windows of tokens [B, L]."""
        hidden = self.window_hidden(ids)
        return self.logits(hidden.flatten(0, 1)).reshape(*ids.shape, -1)


def load_model(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> Model:
    """Load a checkpoint.

    Args:
        checkpoint: float or quantized; quantized linears stay packed in memory.
        dtype: type of the hidden states.
        device: where the weights go.

    Raises:
        ModelError: the family is not covered, or a tensor is missing or has the wrong shape.
    """
    config = checkpoint.require_model()
    check_complete(checkpoint)
    where = torch.device(device)
    arch = config.arch

    def linear(path: str) -> AnyLinear:
        bias = f"{path}.bias"
        return prepare_linear(
            checkpoint.load(f"{path}.weight"),
            checkpoint.load_float(bias) if bias in checkpoint.tensors else None,
            dtype,
            where,
        )

    embedding = linear(arch.embed)
    blocks = tuple(
        _load_block(checkpoint, layer, linear, where) for layer in range(config.num_layers)
    )
    return Model(
        config,
        dtype,
        where,
        embedding,
        blocks,
        _plain(checkpoint, f"{arch.norm}.weight", where),
        embedding if checkpoint.is_tied else linear(arch.head),
    )


def _load_block(
    checkpoint: Checkpoint, layer: int, linear: Callable[[str], AnyLinear], device: torch.device
) -> LoadedBlock:
    arch = checkpoint.require_model().arch
    prefix = arch.block_prefix(layer)
    linears = {spec.name: linear(prefix + spec.name) for spec in arch.linears}
    inside = {f"{name}.{part}" for name in linears for part in ("weight", "bias")}
    weights = {
        path: _plain(checkpoint, name, device)
        for name in checkpoint.block(layer)
        if (path := name[len(prefix) :]) not in inside
    }
    return LoadedBlock(linears, weights)


def _plain(checkpoint: Checkpoint, name: str, device: torch.device) -> Tensor:
    value = checkpoint.load(name)
    if isinstance(value, QuantizedTensor):
        raise ModelError(f"{checkpoint.path}: {name} is quantized, expected floats")
    return value.to(device)
