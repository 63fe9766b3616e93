"""EvalResult: every figure of one evaluated model, as plain data."""

from dataclasses import asdict, dataclass
from typing import Any

from quantkit.eval.divergence import Bin
from quantkit.eval.gates import METRICS, Verdict
from quantkit.eval.texts import TextReport
from quantkit.eval.windows import SCORED_RULE, Score
from quantkit.eval.worst import WorstPosition, WorstWindow


@dataclass(frozen=True)
class EvalResult:
    """Figures of one model. Without a baseline, what takes one is None. Every figure is finite.

    Means are over the scored positions; standard errors take positions as independent.

    Attributes:
        model, baseline: as they were named.
        texts: what each text gave.
        seq_len: tokens of a full window.
        score: which positions are scored, see quantkit.eval.windows.
        num_windows, num_tokens, num_scored: windows, their tokens, and the scored positions.
        ids_digest: SHA-256 of the windows; equal digests mean the same tokens were scored.
        bytes: bytes of the model's tensors in its file; None for a model made in memory.
        bits_per_weight: of the whole file.
        nll: mean negative log-likelihood, nats per token.
        ppl: exp(nll).
        nll_baseline, ppl_baseline: the same of the baseline.
        ppl_ratio: ppl / ppl_baseline.
        nll_delta: mean of nll - nll_baseline per position, with its standard error.
        kl_mean, kl_median, kl_p99, kl_max: of KL(baseline || model) per position, in nats.
        top1: share of positions at which both models' likeliest token is the same.
        kl_histogram: bins of the divergence, two per decade.
        worst_windows, worst_positions: by divergence, or without a baseline by nll.
        gates: what each gate said.
        warnings: one line each.
        seconds: time of the whole evaluation, loading included, for all models compared in it.
    """

    model: str
    baseline: str | None
    texts: tuple[TextReport, ...]
    seq_len: int
    score: Score
    num_windows: int
    num_tokens: int
    num_scored: int
    ids_digest: str
    bytes: int | None
    bits_per_weight: float | None
    nll: float
    nll_stderr: float
    ppl: float
    nll_baseline: float | None = None
    ppl_baseline: float | None = None
    ppl_ratio: float | None = None
    nll_delta: float | None = None
    nll_delta_stderr: float | None = None
    kl_mean: float | None = None
    kl_stderr: float | None = None
    kl_median: float | None = None
    kl_p99: float | None = None
    kl_max: float | None = None
    top1: float | None = None
    kl_histogram: tuple[Bin, ...] = ()
    worst_windows: tuple[WorstWindow, ...] = ()
    worst_positions: tuple[WorstPosition, ...] = ()
    gates: tuple[Verdict, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0

    def metrics(self) -> dict[str, float]:
        """The figures that a gate can look at, those that were not computed left out."""
        return {name: value for name in METRICS if (value := getattr(self, name)) is not None}

    @property
    def has_failed(self) -> bool:
        """Whether any gate fired."""
        return any(verdict.fired for verdict in self.gates)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; every number in it is finite."""
        return {**asdict(self), "scored": SCORED_RULE[self.score]}
