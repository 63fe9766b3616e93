"""Tally: the numbers of one model at every scored position, filled batch by batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quantkit.errors import ModelError
from quantkit.eval.divergence import best_token, kl_divergence
from quantkit.eval.perplexity import row_chunks, token_nll
from quantkit.eval.subject import Decoder, Subject
from quantkit.eval.windows import Window, offsets

# Logits in float32 for the positions that are worked on at a time.
_LOGIT_BYTES = 512 << 20


@dataclass(frozen=True, eq=False)
class Tally:
    """One model, and one number per scored position of each kind, in the order of the windows.

    Attributes:
        nll: negative log-likelihood of the text's token, nats, float64 [S].
        best: id of the likeliest token, int64 [S].
        kl: divergence from the baseline, nats, float64 [S]; not filled for the baseline itself.
        agrees: whether the likeliest token is the baseline's, bool [S]; likewise.
    """

    subject: Subject
    model: Decoder
    nll: Tensor
    best: Tensor
    kl: Tensor
    agrees: Tensor

    @classmethod
    def of(cls, subject: Subject, model: Decoder, num_scored: int) -> "Tally":
        """Nothing counted yet."""
        return cls(
            subject,
            model,
            torch.zeros(num_scored, dtype=torch.float64),
            torch.zeros(num_scored, dtype=torch.int64),
            torch.zeros(num_scored, dtype=torch.float64),
            torch.zeros(num_scored, dtype=torch.bool),
        )


class Scorer:
    """Runs batches of windows through every model and fills their tallies."""

    def __init__(
        self,
        windows: Sequence[Window],
        models: Sequence[Tally],
        base: Tally | None,
        device: str,
    ) -> None:
        self.windows = windows
        self.models = models
        self.base = base
        self.everyone = [*models, *([] if base is None else [base])]
        self.begins = offsets(windows)
        self.device = device

    @torch.inference_mode()
    def score(self, batch: Sequence[int]) -> None:
        """Score windows of equal length, given by their indices.

        Raises:
            ModelError: a logit is not finite.
        """
        first = self.windows[batch[0]].first
        ids = torch.stack([self.windows[index].ids for index in batch]).to(self.device)
        targets = ids[:, first:].flatten()
        places = torch.cat([torch.arange(*self.begins[index : index + 2]) for index in batch])
        # The state after token i - 1 predicts token i.
        hidden = [
            tally.model.window_hidden(ids)[:, first - 1 : -1].flatten(0, 1)
            for tally in self.everyone
        ]
        # Two models' logits are held at a time: the baseline's and one other's.
        columns = 2 * max(tally.model.config.vocab_size for tally in self.everyone)
        for rows in row_chunks(len(targets), columns, 4, _LOGIT_BYTES):
            self._score_rows([h[rows] for h in hidden], targets[rows], places[rows])

    def _score_rows(self, hidden: Sequence[Tensor], targets: Tensor, places: Tensor) -> None:
        """Fill the places [R] of every tally from hidden states [R, C]."""
        base_logits = None
        for tally, states in zip(reversed(self.everyone), reversed(hidden), strict=True):
            logits = tally.model.logits(states)
            self._check_finite(tally, logits, places)
            tally.nll[places] = token_nll(logits, targets).cpu()
            tally.best[places] = best_token(logits, logits.shape[1]).cpu()
            if tally is self.base:
                base_logits = logits
            elif base_logits is not None:
                common = min(logits.shape[1], base_logits.shape[1])
                same = best_token(logits, common) == best_token(base_logits, common)
                tally.agrees[places] = same.cpu()
                tally.kl[places] = kl_divergence(base_logits, logits).cpu()

    def _check_finite(self, tally: Tally, logits: Tensor, places: Tensor) -> None:
        good = logits.isfinite().all(1)
        if bool(good.all()):
            return
        place = int(places[int((~good).nonzero()[0])])
        number, token = locate(place, self.windows, self.begins)
        raise ModelError(
            f"{tally.subject.name}: logits are not finite in window {number}, "
            f"predicting {self.windows[number].describe(token)}",
            hint="the weights hold NaN, or values that overflow; quantize the model again",
        )


def locate(place: int, windows: Sequence[Window], begins: Sequence[int]) -> tuple[int, int]:
    """Window, and token within it, of a scored position.

    Args:
        place: index among all scored positions.
        windows: W windows.
        begins: where each window's scored positions begin, W + 1 numbers.
    """
    number = int(torch.searchsorted(torch.tensor(begins), place, right=True)) - 1
    return number, windows[number].first + place - begins[number]
