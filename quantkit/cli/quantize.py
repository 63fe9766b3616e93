"""quantkit quantize: from a checkpoint to a smaller file."""

from collections import Counter
from pathlib import Path
from typing import Any

import rich_click as click

from quantkit.cli.command import Run, Verb
from quantkit.cli.types import COUNT, MODEL, SIZE, CountType

_SCHEME, _DATA, _OUTPUT, _RUN = "What the numbers may be", "Calibration", "Output", "How it runs"


@click.command("quantize", cls=Verb)
@click.argument("model", type=MODEL, metavar="MODEL")
@click.option(
    "-m",
    "--method",
    "methods",
    multiple=True,
    metavar="NAME",
    help="How the numbers are chosen, see `quantkit list methods`. May be repeated.",
    panel=_SCHEME,
)
@click.option("-b", "--bits", type=COUNT, help="Bits per weight.", panel=_SCHEME)
@click.option(
    "-g",
    "--group-size",
    type=CountType(minimum=-1),
    help="Columns that share one scale, -1 for the whole row; the largest of 128, 64 and 32 that "
    "divides if not given.",
    panel=_SCHEME,
)
@click.option("--asym", is_flag=True, help="Give every group a zero point.", panel=_SCHEME)
@click.option(
    "-s",
    "--scheme",
    help="All of that in one word: w4a16-g64, w4a16-g128-asym, w8a8.",
    panel=_SCHEME,
)
@click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="REGEX=SCHEME|keep",
    help="Another scheme for the tensors that match; the first match wins. May be repeated.",
    panel=_SCHEME,
)
@click.option(
    "--keep",
    multiple=True,
    metavar="REGEX",
    help="Leave the tensors that match as they are; goes before every --rule. May be repeated.",
    panel=_SCHEME,
)
@click.option(
    "-d",
    "--dataset",
    "datasets",
    multiple=True,
    metavar="builtin|FILE|NAME",
    help="Text to calibrate with. May be repeated.",
    panel=_DATA,
)
@click.option("--num-samples", type=COUNT, help="Windows of text.", panel=_DATA)
@click.option("--seq-len", type=COUNT, help="Tokens per window.", panel=_DATA)
@click.option("--seed", type=click.IntRange(min=0), help="Choice of the windows.", panel=_DATA)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Folder, or file for GGUF. Named after model, method and scheme if not given.",
    panel=_OUTPUT,
)
@click.option("-f", "--format", metavar="gptq|hf|gguf", help="Container.", panel=_OUTPUT)
@click.option(
    "-t", "--type", metavar="NAME", help="GGUF type: Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0.", panel=_OUTPUT
)
@click.option(
    "--keep-dtype",
    metavar="NAME",
    help="Type of the tensors that stay floats: float32, float16, bfloat16.",
    panel=_OUTPUT,
)
@click.option("--shard-size", type=SIZE, help="Largest file of the output, 5GB.", panel=_OUTPUT)
@click.option("--force", is_flag=True, help="Replace an output that exists.", panel=_OUTPUT)
@click.option(
    "-r",
    "--recipe",
    metavar="NAME|FILE",
    help="Start from a recipe, see `quantkit list recipes`; flags go before it.",
    panel=_RUN,
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the method, such as scale_search=none. May be repeated.",
    panel=_RUN,
)
@click.option("--print-recipe", is_flag=True, help="Print the whole recipe and stop.", panel=_RUN)
@click.option("--dry-run", is_flag=True, help="Print the plan and stop.", panel=_RUN)
@click.option("--device", default="auto", help="auto, cpu, cuda or cuda:N.", panel=_RUN)
@click.option("--revision", help="Branch, tag or commit of a hub model.", panel=_RUN)
@click.pass_obj
def command(
    run: Run,
    /,
    *,
    model: str,
    output: Path | None,
    recipe: str | None,
    settings: tuple[str, ...],
    keep: tuple[str, ...],
    rules: tuple[str, ...],
    print_recipe: bool,
    dry_run: bool,
    force: bool,
    device: str,
    revision: str | None,
    **overrides: Any,  # the flags that a recipe can hold too, by its keys
) -> None:
    """Quantize MODEL (a folder, a GGUF file or a hub id), write the result and check it.

    An output that exists is never replaced without --force.
    """
    from quantkit.core.recipe import resolve_recipe

    overrides["rules"] = [*(f"{regex}=keep" for regex in keep), *rules]
    given = {key: value for key, value in overrides.items() if value not in (None, (), [], False)}
    resolved = resolve_recipe(model, recipe=recipe, overrides=given, settings=settings)
    run.report.recipe_hash = resolved.hash()
    if print_recipe:
        _print_recipe(run, resolved.model_dump(mode="json"))
        return

    from quantkit.pipeline import quantize

    result = quantize(
        resolved,
        output=output,
        dry_run=dry_run,
        force=force,
        device=device,
        revision=revision,
        progress=run.console.progress(),
        report=run.report,
    )
    run.report.result = result
    if dry_run:
        columns = ("tensor", "from", "to", "bytes", "why")
        run.console.table(columns, [[row[name] for name in columns] for row in result["plan"]])
        run.console.data("")
    run.console.table(("plan" if dry_run else "done", ""), _summary(result))


def _print_recipe(run: Run, values: dict[str, Any]) -> None:
    import yaml

    run.report.result = {"recipe": values}
    run.console.data(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), end="")


def _summary(result: dict[str, Any]) -> list[tuple[str, str]]:
    """What a person wants to know of a plan or of a finished run, text by text."""
    rows = [
        ("output", result["output"]),
        ("format", f"{result['format']}, {result['scheme']}"),
        ("bytes", str(result["bytes"])),
        ("bits per weight", f"{result['bits_per_weight']:.3f}"),
        ("bits per weight of the linears", f"{result['bits_per_weight_linears']:.3f}"),
        ("peak memory, estimated", f"{result['peak_memory_bytes'] / 1e9:.2f} GB"),
    ]
    if data := result.get("data"):
        used, asked = data["tokens_used"], data["tokens_asked"]
        names = ", ".join(source["name"] for source in data["sources"])
        rows.append(("calibrated with", f"{used} tokens of {asked} asked, from {names}"))
    if errors := result.get("tensors"):
        worst = max(errors, key=lambda row: row["error"])
        mean = sum(row["error"] for row in errors) / len(errors)
        rows.append(("mean relative error", f"{mean:.3e}"))
        rows.append(("largest relative error", f"{worst['error']:.3e}, {worst['tensor']}"))
        if chosen := Counter(row["choice"] for row in errors if "choice" in row):
            counts = ", ".join(f"{name} {count}" for name, count in chosen.most_common())
            rows.append(("best on each tensor", counts))
    if verified := result.get("verified"):
        rows.append(("read back and compared", f"{verified['tensors']} tensors, equal"))
    return rows
