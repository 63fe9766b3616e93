"""quantkit eval: what a file costs in quality, and gates for automatic checks."""

from pathlib import Path

import rich_click as click

from quantkit.cli.command import Run, Verb
from quantkit.cli.types import COUNT, MODEL


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
    from quantkit.eval import check, evaluate, write_html, write_json
    from quantkit.eval.report import figure_rows, gate_rows

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
    run.console.table(("figure", result.model), figure_rows(result))
    if result.gates:
        run.console.data("")
        run.console.table(("gate", "value", ""), gate_rows(result))
    if output is not None:
        write_json(output, [result])
    if html is not None:
        write_html(html, [result])
    check(result.gates)
