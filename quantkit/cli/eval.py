"""quantkit eval: what a file costs in quality, and gates for automatic checks."""

from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from quantkit.cli.command import Run, Verb
from quantkit.cli.types import COUNT, MODEL

if TYPE_CHECKING:
    from quantkit.eval import EvalResult


@click.command("eval", cls=Verb)
@click.argument("model", type=MODEL, metavar="MODEL")
@click.option("--baseline", type=MODEL, metavar="REF", help="The original model, to compare with.")
@click.option(
    "--text",
    "texts",
    multiple=True,
    metavar="builtin|FILE",
    default=("builtin",),
    show_default=True,
    help="Text or JSONL file to evaluate on. May be repeated.",
)
@click.option("--seq-len", type=COUNT, default=512, show_default=True, help="Tokens per window.")
@click.option("--limit", type=COUNT, metavar="N", help="Only the first N windows.")
@click.option(
    "--score",
    type=click.Choice(["second-half", "all"]),
    default="second-half",
    show_default=True,
    help="Positions of each window that count.",
)
@click.option("--batch-size", type=COUNT, help="Windows at once; changes no figure.")
@click.option(
    "--fail-if",
    multiple=True,
    metavar="EXPR",
    help='Exit with code 5 when it holds: "kl_mean > 0.05". May be repeated.',
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write every figure to this JSON file.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a page for people to this file.",
)
@click.option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
@click.pass_obj
def command(
    run: Run,
    /,
    *,
    model: str,
    baseline: str | None,
    texts: tuple[str, ...],
    seq_len: int,
    limit: int | None,
    score: str,
    batch_size: int | None,
    fail_if: tuple[str, ...],
    output: Path | None,
    html: Path | None,
    device: str,
) -> None:
    """Perplexity of MODEL and, against a baseline, divergence and agreement."""
    from quantkit.eval import check, evaluate

    result = evaluate(
        model,
        baseline=baseline,
        texts=texts,
        seq_len=seq_len,
        limit=limit,
        score=score,
        batch_size=batch_size,
        fail_if=fail_if,
        progress=run.console.progress(),
        device=device,
    )
    run.report.result = result.to_dict()
    for line in result.warnings:
        run.report.warn("eval", line)
    _print(run, result)
    check(result.gates)


def _print(run: Run, result: "EvalResult") -> None:
    compared = result.baseline is not None
    rows: list[tuple[str, object, object]] = [
        ("perplexity", result.ppl, result.ppl_baseline),
        ("nll", result.nll, result.nll_baseline),
        ("bits per weight", result.bits_per_weight, None),
        ("bytes", result.bytes, None),
    ]
    if compared:
        rows += [
            ("perplexity ratio", result.ppl_ratio, None),
            ("KL mean", result.kl_mean, None),
            ("KL 99th percentile", result.kl_p99, None),
            ("KL largest", result.kl_max, None),
            ("top-1 agreement", result.top1, None),
        ]
        run.console.table(
            ("figure", result.model, f"baseline {result.baseline}"),
            [(name, value, "" if base is None else base) for name, value, base in rows],
        )
    else:
        run.console.table(("figure", result.model), [row[:2] for row in rows])
    run.console.data(
        f"{result.num_scored} positions scored of {result.num_tokens} tokens "
        f"in {result.num_windows} windows, {result.seconds:.1f} s"
    )
    for verdict in result.gates:
        answer = "holds, failed" if verdict.fired else "does not hold, passed"
        run.console.data(f"gate {verdict.gate}: {verdict.value:.6g}, {answer}")
