"""quantkit convert: the same model in another container."""

from pathlib import Path

import rich_click as click

from quantkit.cli.command import Run, Verb
from quantkit.cli.types import MODEL


@click.command("convert", cls=Verb)
@click.argument("source", type=MODEL, metavar="IN")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder, or file for GGUF.",
)
@click.option("-f", "--format", required=True, metavar="hf|gptq|gguf", help="Container.")
@click.option(
    "-t", "--type", metavar="NAME", help="GGUF type: F32, F16, BF16, or the one that IN has."
)
@click.option(
    "--dtype", metavar="NAME", help="Type of float tensors: float32, float16 or bfloat16."
)
@click.option("--force", is_flag=True, help="Replace an output that exists.")
@click.option("--dry-run", is_flag=True, help="Print the plan and stop.")
@click.option("--revision", help="Branch, tag or commit of a hub model.")
@click.pass_obj
def command(
    run: Run,
    /,
    *,
    source: str,
    output: Path,
    format: str,
    type: str | None,
    dtype: str | None,
    force: bool,
    dry_run: bool,
    revision: str | None,
) -> None:
    """Write the model IN into another container, and say whether a number changed.

    Codes are kept where the target can hold them and decoded to floats elsewhere. Nothing is
    rounded to fewer bits: that is `quantkit quantize`.
    """
    from quantkit.convert import convert

    result = convert(
        source,
        output=output,
        format=format,
        type=type,
        dtype=dtype,
        force=force,
        dry_run=dry_run,
        revision=revision,
        progress=run.console.progress(),
    )
    run.report.result = result
    if dry_run:
        columns = ("tensor", "from", "to", "bytes", "action")
        run.console.table(columns, [[row[name] for name in columns] for row in result["plan"]])
        run.console.data("")
    answers = {True: "exact", False: "not exact", None: "exact if every value fits"}
    run.console.data(f"{result['output']}: {result['bytes']} bytes, {answers[result['exact']]}")
    for reason in result["reasons"]:
        run.console.data(f"  {reason}")
