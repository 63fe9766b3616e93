"""Results as rows of text for a terminal, and as files: one JSON document, one HTML page."""

from collections.abc import Sequence
from pathlib import Path

from quantkit.core.report import dumps
from quantkit.errors import ResourceError
from quantkit.eval.html import html_page
from quantkit.eval.result import EvalResult

HEADER = ("model", "bytes", "bits/weight", "ppl", "ppl ratio", "KL mean", "KL p99", "top-1")


def figure_rows(result: EvalResult) -> list[tuple[str, str]]:
    """Label and value of every figure of one model, what was not computed left out."""
    rows: list[tuple[str, str | None]] = [
        ("perplexity", _number(result.ppl)),
        ("nll", f"{result.nll:.5f} ± {result.nll_stderr:.5f} nats per token"),
        ("baseline perplexity", _number(result.ppl_baseline)),
        ("perplexity ratio", _number(result.ppl_ratio)),
        ("nll difference", _plus_minus(result.nll_delta, result.nll_delta_stderr)),
        ("KL mean", _plus_minus(result.kl_mean, result.kl_stderr)),
        ("KL median", _number(result.kl_median)),
        ("KL 99th percentile", _number(result.kl_p99)),
        ("KL largest", _number(result.kl_max)),
        ("top-1 agreement", _percent(result.top1)),
        ("bytes", None if result.bytes is None else f"{result.bytes:,}"),
        ("bits per weight", _number(result.bits_per_weight)),
        ("windows", f"{result.num_windows:,} of {result.seq_len} tokens"),
        ("tokens", f"{result.num_tokens:,}"),
        ("scored positions", f"{result.num_scored:,} ({result.score})"),
    ]
    return [(label, value) for label, value in rows if value is not None]


def gate_rows(result: EvalResult) -> list[tuple[str, str, str]]:
    """Gate, value and `failed` or `passed`."""
    return [
        (verdict.gate, _number(verdict.value) or "", "failed" if verdict.fired else "passed")
        for verdict in result.gates
    ]


def comparison_rows(results: Sequence[EvalResult]) -> list[tuple[str, ...]]:
    """One row per model under ``HEADER``; the baseline, if there is one, comes first."""
    rows: list[tuple[str, ...]] = []
    base = results[0]
    if base.baseline is not None:
        rows.append((base.baseline, "", "", _number(base.ppl_baseline) or "", "", "", "", ""))
    for result in results:
        cells = (
            None if result.bytes is None else f"{result.bytes:,}",
            _number(result.bits_per_weight),
            _number(result.ppl),
            _number(result.ppl_ratio),
            _number(result.kl_mean),
            _number(result.kl_p99),
            _percent(result.top1),
        )
        rows.append((result.model, *(cell or "" for cell in cells)))
    return rows


def write_json(path: Path, results: Sequence[EvalResult]) -> None:
    """Write one result as an object, several as a list.

    Raises:
        ResourceError: the file cannot be written.
    """
    found = [result.to_dict() for result in results]
    _write(path, dumps(found[0] if len(found) == 1 else found) + "\n")


def write_html(path: Path, results: Sequence[EvalResult]) -> None:
    """Write a page that needs no other file.

    Raises:
        ResourceError: the file cannot be written.
    """
    tables = [(result, figure_rows(result), gate_rows(result)) for result in results]
    _write(path, html_page(HEADER, comparison_rows(results), tables))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResourceError(f"{path}: {error.strerror or error}") from error


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.5g}"


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.2f} %"


def _plus_minus(value: float | None, error: float | None) -> str | None:
    return None if value is None else f"{value:.5g} ± {error:.2g}"
