"""The walk: hidden states of all calibration windows, one block after another.

At each block, ``collect`` runs the windows up to one input group and gathers its statistics;
``advance`` runs the rest of the block and replaces its inputs by its outputs. Since the weights
that both are given are the quantized ones wherever a linear is already done, every linear is
calibrated on the inputs that the quantized prefix produces.

Each batch of windows is run in steps that wait between two groups, so nothing is computed twice.
Where the waiting tensors would take too much memory, the block is run afresh up to each group.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from quantkit.calibration.stats import Stats
from quantkit.calibration.windows import PAD_DOCUMENT, Windows
from quantkit.core.arch import InputGroup
from quantkit.core.config import ModelConfig
from quantkit.errors import ModelError, ResourceError
from quantkit.models.attention import attend_windows
from quantkit.models.block import Stages, dense_linear, finish, stages
from quantkit.models.rope import rotary

_BATCH_TOKENS = 4096
_IN_MEMORY_BYTES = 1 << 30
_RESTART_TOKENS = 128


@dataclass(eq=False)
class Walk:
    """State between two blocks.

    Attributes:
        config: of the model.
        windows: the calibration tokens.
        hidden: inputs of the next block [W, L, C] float32, in memory or in an unlinked file.
        device: where blocks run.
    """

    config: ModelConfig
    windows: Windows
    hidden: Tensor
    device: torch.device

    def collect(
        self, weights: Mapping[str, Tensor], layer: int, group: InputGroup, *, with_gram: bool
    ) -> Stats:
        """Statistics of one input group of a block; padding is never counted.

        The groups of a block are asked for in the order of their computation.

        Args:
            weights: tensors of the block by path below it, float32; linears may be replaced in it
                between two calls.
            layer: number of the block.
            group: whose inputs to gather.
            with_gram: gather the Gram matrix too.
        """
        stats: Stats | None = None
        for number, rows in enumerate(self._batches()):
            inputs = _reach(self._steps(weights, layer, number, rows), group)
            if stats is None:
                stats = Stats.empty(inputs.shape[-1], with_gram=with_gram)
            keep = (self.windows.docs[rows] != PAD_DOCUMENT).flatten().to(self.device)
            stats.update(inputs if bool(keep.all()) else inputs[keep])
        assert stats is not None
        return stats

    def advance(self, weights: Mapping[str, Tensor], layer: int) -> None:
        """Replace the block's inputs by its outputs.

        Raises:
            ModelError: an output is not finite.
        """
        for number, rows in enumerate(self._batches()):
            out = finish(self._steps(weights, layer, number, rows))
            if not bool(torch.isfinite(out).all()):
                raise ModelError(
                    f"block {layer}: the outputs hold NaN or infinity",
                    hint="check the source with `quantkit eval`",
                )
            self.hidden[rows] = out.view(self.hidden[rows].shape).cpu()
        self._waiting.clear()

    def restart(self, embed: Callable[[Tensor], Tensor]) -> "Walk":
        """A new walk at the embeddings of the first window's first 128 tokens."""
        cut = replace(
            self.windows,
            ids=self.windows.ids[:1, :_RESTART_TOKENS],
            docs=self.windows.docs[:1, :_RESTART_TOKENS],
        )
        return start_walk(self.config, cut, embed, device=self.device)

    def _steps(self, weights: Mapping[str, Tensor], layer: int, number: int, rows: slice) -> Stages:
        """The block's steps over one batch: those that wait already, or new ones."""
        if number in self._waiting:
            return self._waiting[number]
        steps = self._start(weights, layer, rows)
        if self._waiting_bytes() <= _IN_MEMORY_BYTES:
            self._waiting[number] = steps
        return steps

    def _start(self, weights: Mapping[str, Tensor], layer: int, rows: slice) -> Stages:
        docs = self.windows.docs[rows].to(self.device)
        shape = docs.shape
        single = bool((docs == docs[:, :1]).all())

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (x.reshape(*shape, *x.shape[1:]) for x in (q, k, v))
            scale, window = self.config.attention_scale, self.config.windows[layer]
            return attend_windows(q, k, v, scale, window, None if single else docs).flatten(0, 1)

        turn = rotary(self.config.rope, self._positions[rows].flatten().to(self.device))
        x = self.hidden[rows].flatten(0, 1).to(self.device)
        return stages(self.config, weights, x, turn, attention, dense_linear(weights))

    def _waiting_bytes(self) -> int:
        """Most that the steps of all batches hold between two groups."""
        per_token = 2 * self.config.hidden_size + self.config.intermediate_size
        return self.windows.ids.numel() * per_token * 4

    def __post_init__(self) -> None:
        self._positions = self.windows.positions()
        self._waiting: dict[int, Stages] = {}

    def _batches(self) -> Iterator[slice]:
        step = max(1, _BATCH_TOKENS // self.windows.seq_len)
        for start in range(0, self.windows.num_windows, step):
            yield slice(start, min(start + step, self.windows.num_windows))


def _reach(steps: Stages, group: InputGroup) -> Tensor:
    """Run the steps up to the inputs of a group [T, K]."""
    for name, inputs in steps:
        if name == group:
            return inputs
    raise AssertionError(f"the block has no inputs {group} from here on")


def start_walk(
    config: ModelConfig,
    windows: Windows,
    embed: Callable[[Tensor], Tensor],
    *,
    device: torch.device,
    scratch: Path | None = None,
) -> Walk:
    """Begin at the embeddings.

    Args:
        config: of the model.
        windows: the calibration tokens.
        embed: token ids [L] -> their embeddings [L, C], any float type.
        device: where blocks run.
        scratch: folder for the file that holds large hidden states; None for the system's own.

    Raises:
        ModelError: a token id is not below the vocabulary size.
        ResourceError: the file cannot be made.
    """
    top = int(windows.ids.max())
    if top >= config.vocab_size:
        raise ModelError(
            f"token id {top} has no row in the embedding of {config.vocab_size} rows",
            hint="the tokenizer does not belong to this model",
        )
    shape = (*windows.ids.shape, config.hidden_size)
    hidden = _allocate(shape, scratch)
    for row in range(shape[0]):
        hidden[row] = embed(windows.ids[row]).to(torch.float32)
    return Walk(config, windows, hidden, device)


def _allocate(shape: tuple[int, ...], scratch: Path | None) -> Tensor:
    """Float32 tensor in memory, or over an already unlinked file when it is large."""
    count = int(torch.tensor(shape).prod())
    if count * 4 <= _IN_MEMORY_BYTES:
        return torch.empty(shape)
    try:
        with tempfile.NamedTemporaryFile(dir=scratch, prefix="quantkit-") as file:
            file.truncate(count * 4)
            return torch.from_file(file.name, shared=True, size=count).view(shape)
    except OSError as error:
        place = scratch or tempfile.gettempdir()
        raise ResourceError(
            f"no room for {count * 4} bytes of hidden states in {place}: {error.strerror}",
            hint="use fewer or shorter samples, or set TMPDIR to a larger place",
        ) from None
