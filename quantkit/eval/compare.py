"""evaluate() and compare(): models over windows of text, with or without a baseline.

The baseline runs once per batch, however many models are compared with it. Windows of a batch have
the same length, so nothing is padded; only scored positions go through the output head, a bounded
number of rows at a time. Everything that is kept is one number per position, put at its place, and
summed at the end: the figures do not depend on the batch size beyond the rounding of float32
matrix products.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from quantkit.core.progress import Progress, SilentProgress
from quantkit.errors import ModelError
from quantkit.eval import divergence, worst
from quantkit.eval.gates import judge, parse_gates
from quantkit.eval.perplexity import perplexity, standard_error
from quantkit.eval.result import EvalResult
from quantkit.eval.subject import Ref, Subject, open_subject, resolve_device
from quantkit.eval.tally import Scorer, Tally
from quantkit.eval.texts import BUILTIN, TextReport, load_windows
from quantkit.eval.windows import Score, Window, batches, check_sizes, ids_digest

# Windows of a batch together: matrix products gain nothing from more.
_BATCH_TOKENS = 2048


def evaluate(
    model: Ref,
    *,
    baseline: Ref | None = None,
    texts: Sequence[str] = (BUILTIN,),
    seq_len: int = 512,
    limit: int | None = None,
    score: str = "second-half",
    batch_size: int | None = None,
    fail_if: Sequence[str] = (),
    progress: Progress | None = None,
    device: str = "auto",
) -> EvalResult:
    """Perplexity of a model and, against a baseline, what its file cost in quality.

    Which positions are scored is said in quantkit.eval.windows. Models run in float32, figures are
    float64. Model and baseline must give the same token ids for the text; their vocabularies may
    differ by padding, and then the divergence is over the ids that both have.

    Args:
        model, baseline: folder, GGUF file, hub id, open Checkpoint, or Subject.
        texts: `builtin`, UTF-8 text files, JSONL files.
        seq_len: tokens per window.
        limit: only the first this many windows.
        score: `second-half` or `all`.
        batch_size: windows per batch; None chooses. It does not change the figures.
        fail_if: gates, `METRIC OPERATOR NUMBER`; the verdicts are in the result, and
            quantkit.eval.check raises for those that fired.
        progress: told after every batch.
        device: auto, cpu, cuda or cuda:N.

    Raises:
        UsageError: an argument that cannot be meant; a gate on a figure that is not computed.
        DataError: a text cannot be read or is too short.
        ModelError: a model is damaged or not supported, gives logits that are not finite, or reads
            other tokens than the baseline.
        ResourceError: the device is not there.
    """
    (result,) = compare(
        [model],
        baseline,
        texts=texts,
        seq_len=seq_len,
        limit=limit,
        score=score,
        batch_size=batch_size,
        fail_if=fail_if,
        progress=progress,
        device=device,
    )
    return result


def compare(
    models: Sequence[Ref],
    baseline: Ref | None = None,
    *,
    texts: Sequence[str] = (BUILTIN,),
    seq_len: int = 512,
    limit: int | None = None,
    score: str = "second-half",
    batch_size: int | None = None,
    fail_if: Sequence[str] = (),
    progress: Progress | None = None,
    device: str = "auto",
) -> list[EvalResult]:
    """Evaluate several models over the same windows, in one pass of the baseline.

    All of them are in memory at once. Arguments and errors are those of ``evaluate``; the gates
    apply to every model.

    Returns:
        One result per model, in order.
    """
    started = time.monotonic()
    gates = parse_gates(fail_if, has_baseline=baseline is not None)
    check_sizes(seq_len, limit, score, batch_size)
    rule = cast(Score, score)
    where = resolve_device(device)
    say = progress or SilentProgress()

    subjects = [open_subject(ref) for ref in models]
    base_subject = None if baseline is None else open_subject(baseline)
    everyone = [*subjects, *([] if base_subject is None else [base_subject])]
    windows, reports = load_windows(texts, everyone, seq_len, limit, rule)
    num_scored = sum(window.num_scored for window in windows)

    def load(subject: Subject) -> Tally:
        model = subject.load(where)
        _check_ids(subject.name, windows, model.config.vocab_size)
        return Tally.of(subject, model, num_scored)

    tallies = [load(subject) for subject in subjects]
    base = None if base_subject is None else load(base_subject)
    scorer = Scorer(windows, tallies, base, where)
    say.start("evaluate", len(windows), "window")
    for batch in batches(windows, batch_size or max(1, _BATCH_TOKENS // seq_len)):
        scorer.score(batch)
        say.advance(len(batch))
    say.done()

    results = []
    for tally in tallies:
        result = EvalResult(
            model=tally.subject.name,
            baseline=None if base_subject is None else base_subject.name,
            texts=reports,
            seq_len=seq_len,
            score=rule,
            num_windows=len(windows),
            num_tokens=sum(window.ids.numel() for window in windows),
            num_scored=num_scored,
            ids_digest=ids_digest(windows),
            bytes=tally.subject.num_bytes,
            bits_per_weight=tally.subject.bits_per_weight,
            nll=float(tally.nll.mean()),
            nll_stderr=standard_error(tally.nll),
            ppl=perplexity(float(tally.nll.mean()), tally.subject.name),
            warnings=_warnings(tally, base, windows, reports),
        )
        if base is not None:
            result = _against(result, tally, base)
        result = _with_worst(result, tally, base, windows)
        result = replace(result, seconds=round(time.monotonic() - started, 3))
        results.append(replace(result, gates=judge(result.metrics(), gates)))
    return results


def _against(result: EvalResult, tally: Tally, base: Tally) -> EvalResult:
    """Add the figures that take a baseline."""
    delta = tally.nll - base.nll
    base_nll = float(base.nll.mean())
    return replace(
        result,
        nll_baseline=base_nll,
        ppl_baseline=perplexity(base_nll, base.subject.name),
        ppl_ratio=perplexity(float(delta.mean()), tally.subject.name),
        nll_delta=float(delta.mean()),
        nll_delta_stderr=standard_error(delta),
        kl_mean=float(tally.kl.mean()),
        kl_stderr=standard_error(tally.kl),
        kl_median=divergence.percentile(tally.kl, 0.5),
        kl_p99=divergence.percentile(tally.kl, 0.99),
        kl_max=float(tally.kl.max()),
        top1=float(tally.agrees.double().mean()),
        kl_histogram=divergence.histogram(tally.kl),
    )


def _with_worst(
    result: EvalResult, tally: Tally, base: Tally | None, windows: Sequence[Window]
) -> EvalResult:
    """Add where the model is worst."""
    values = tally.nll if base is None else tally.kl
    best = None if base is None else base.best
    tokenizer = tally.subject.tokenizer
    return replace(
        result,
        worst_windows=worst.worst_windows(values, windows, tokenizer),
        worst_positions=worst.worst_positions(values, windows, tokenizer, tally.best, best),
    )


def _check_ids(name: str, windows: Sequence[Window], vocab_size: int) -> None:
    """Refuse token ids that a model has no embedding for."""
    for window in windows:
        if int(window.ids.max()) >= vocab_size:
            at = int((window.ids >= vocab_size).nonzero()[0])
            raise ModelError(
                f"{name}: {window.describe(at)} has id {int(window.ids[at])}, but the model has "
                f"{vocab_size} embeddings",
                hint="the tokenizer does not belong to this model",
            )


def _warnings(
    tally: Tally, base: Tally | None, windows: Sequence[Window], reports: Sequence[TextReport]
) -> tuple[str, ...]:
    found = [
        f"{report.name}: {report.num_dropped} documents of fewer than 2 tokens left out"
        for report in reports
        if report.num_dropped
    ]
    longest = max(window.ids.numel() for window in windows)
    config = tally.model.config
    if longest > config.max_positions:
        found.append(
            f"windows of {longest} tokens are longer than the {config.max_positions} positions "
            f"that {tally.subject.name} was made for"
        )
    if base is not None and (other := base.model.config.vocab_size) != config.vocab_size:
        found.append(
            f"vocabularies of {config.vocab_size} and, for the baseline, {other} ids: divergence "
            f"and agreement are over the first {min(config.vocab_size, other)}"
        )
    return tuple(found)
