"""quantkit list: the parts that a command or a recipe can name."""

from importlib import import_module
from typing import Any

import rich_click as click

from quantkit.cli.command import Run, Verb

Row = dict[str, Any]


@click.command("list", cls=Verb)
@click.argument("kind", type=click.Choice(["methods", "formats", "archs", "kernels", "recipes"]))
@click.pass_obj
def command(run: Run, /, *, kind: str) -> None:
    """Show the methods, formats, archs, kernels or recipes that there are."""
    rows = list_parts(kind)
    run.report.result = {kind: rows}
    columns = list(rows[0]) if rows else ["name"]
    run.console.table(columns, [[_cell(row[name]) for name in columns] for row in rows])


def list_parts(kind: str) -> list[Row]:
    """One row per part of a kind, each with its name and a one-line description."""
    if kind == "methods":
        from quantkit.calibration.method import METHODS

        return [{"name": name, "description": METHODS.get(name).summary} for name in METHODS]
    if kind == "formats":
        from quantkit.formats import FORMATS

        return [{"name": n, "description": _summary(f"quantkit.formats.{n}")} for n in FORMATS]
    if kind == "archs":
        return _archs()
    return _kernels() if kind == "kernels" else _recipes()


def _archs() -> list[Row]:
    from quantkit.archs import ARCHS

    return [
        {
            "name": name,
            "model_types": list(ARCHS.get(name).model_types),
            "gguf": ARCHS.get(name).gguf_arch,
            "description": _summary(f"quantkit.archs.{name}"),
        }
        for name in ARCHS
    ]


def _kernels() -> list[Row]:
    from quantkit.kernels import linear_kernels

    return [
        {
            "name": kernel.name,
            "op": "linear",
            "backend": kernel.backend,
            "priority": kernel.priority,
            "description": _summary(kernel.run.__module__),
        }
        for kernel in linear_kernels()
    ]


def _recipes() -> list[Row]:
    from quantkit.core.recipe import preset_names, preset_summary

    return [{"name": name, "description": preset_summary(name)} for name in preset_names()]


def _summary(module: str) -> str:
    """First sentence line of a module's docstring: every part is one file that begins with one."""
    return (import_module(module).__doc__ or "").strip().partition("\n")[0]


def _cell(value: Any) -> Any:
    return ", ".join(value) if isinstance(value, list) else value
