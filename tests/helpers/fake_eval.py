"""A small causal model and a tokenizer of numbered words, for tests of the evaluation."""

from dataclasses import dataclass, field

import tokenizers
import torch
from tokenizers import models, pre_tokenizers
from torch import Tensor

from quantkit.core.tokenizer import Tokenizer
from quantkit.eval.subject import Subject

VOCAB = 40


@dataclass(frozen=True)
class FakeConfig:
    """The two numbers that the evaluation reads."""

    vocab_size: int
    max_positions: int = 256


@dataclass(eq=False)
class FakeDecoder:
    """Logits from the mean embedding of the tokens so far, so each depends on all before it."""

    embedding: Tensor
    head: Tensor
    batch_sizes: list[int] = field(default_factory=list)

    @property
    def config(self) -> FakeConfig:
        """Sizes."""
        return FakeConfig(self.head.shape[0])

    def window_hidden(self, ids: Tensor) -> Tensor:
        """[B, L] -> [B, L, C]."""
        self.batch_sizes.append(len(ids))
        count = torch.arange(1, ids.shape[1] + 1)[:, None]
        return self.embedding[ids].cumsum(1) / count + 0.5 * self.embedding[ids]

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, C] -> [R, V]."""
        return hidden @ self.head.T


def fake_decoder(
    seed: int = 0, *, scale: float = 1.0, noise: float = 0.0, padding: int = 0
) -> FakeDecoder:
    """A random decoder; `noise` moves its head, `padding` adds rows that no token has."""
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.randn(VOCAB, 16, generator=generator)
    head = scale * torch.randn(VOCAB, 16, generator=generator)
    head = head + noise * torch.randn(VOCAB, 16, generator=generator)
    extra = torch.randn(padding, 16, generator=generator)
    return FakeDecoder(embedding, torch.cat([head, extra]))


def word_tokenizer(vocab: dict[str, int] | None = None) -> Tokenizer:
    """`w7` is token 7."""
    words = vocab or {f"w{number}": number for number in range(VOCAB)}
    backend = tokenizers.Tokenizer(models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend, settings={}, template=None)


def words(count: int, seed: int = 1) -> str:
    """A text of `count` tokens."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCAB, (count,), generator=generator)
    return " ".join(f"w{number}" for number in ids.tolist())


def fake_subject(name: str = "fake", decoder: FakeDecoder | None = None) -> Subject:
    """A subject around a decoder."""
    model = decoder or fake_decoder()
    return Subject(name, word_tokenizer(), lambda _: model)
