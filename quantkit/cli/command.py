"""Verb: a click command with the options that every verb has, and the Run that they set up."""

import contextlib
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

import rich_click as click

from quantkit.cli.console import Console, hush, standard_streams
from quantkit.cli.failures import explain, is_failed_check
from quantkit.cli.logs import LOGGER, logging_to
from quantkit.core.report import Report

_SECRETS = ("api_key", "api_keys")
_WARNINGS_SHOWN = 10


class Run:
    """One invocation of the program: its console, its report and how it ends.

    Made before the command line is parsed, so that a command line that cannot be parsed is reported
    in the way that it asks for.
    """

    def __init__(self, args: Sequence[str]) -> None:
        own = args[: args.index("--")] if "--" in args else args
        out, err = standard_streams()
        self.console = Console(out, err, json="--json" in own, color="--no-color" not in own)
        verb = next((arg for arg in own if not arg.startswith("-")), "")
        self.report = Report(command=verb, args={})
        self._traceback = "--traceback" in own
        self._streams = (out, err)
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.console.close()
        self._exit.close()

    def configure(self, verb: str, args: dict[str, Any], common: dict[str, Any]) -> None:
        """Set up console, logging and report from a parsed command line."""
        self.report.command = verb
        self.report.args = {k: "***" if k in _SECRETS and v else v for k, v in args.items()}
        self._traceback = common["traceback"]
        self.console = Console(
            *self._streams,
            json=common["json"],
            quiet=common["quiet"],
            color=not common["no_color"],
        )
        # Whatever a library prints must not mix with the data.
        self._exit.enter_context(contextlib.redirect_stdout(self._streams[1]))
        self._exit.enter_context(
            logging_to(self.console, common["log_file"], verbose=common["verbose"])
        )
        self.console.transcript(f"quantkit {verb} {self.report.args}")

    @property
    def out(self) -> TextIO:
        """The real standard output, which libraries do not get to see."""
        return self._streams[0]

    def hush(self) -> None:
        """Forget standard output, which nobody reads any more."""
        hush(self._streams[0])

    def finish(self) -> None:
        """End well: show the warnings, print the document."""
        self._show_warnings()
        if self.console.json:
            self.console.document(self.report.document())

    def fail(self, error: BaseException) -> int:
        """End badly: say why, print the document, and return the exit code."""
        known = explain(error)
        LOGGER.info("failed", exc_info=error)  # shown in the log file only
        if self._traceback:
            self.console.show("".join(traceback.format_exception(error)).rstrip("\n"))
        self._show_warnings()
        self.console.fail(known.message, known.hint)
        if self.console.json:
            document = self.report.document(known)
            document["error"]["type"] = type(error).__name__
            if is_failed_check(known):
                document["status"] = "failed"
            self.console.document(document)
        return known.exit_code

    def _show_warnings(self) -> None:
        shown: Counter[str] = Counter()
        for warning in self.report.warnings:
            code = str(warning["code"])
            shown[code] += 1
            if shown[code] <= _WARNINGS_SHOWN:
                tensor = f"{warning['tensor']}: " if warning.get("tensor") else ""
                self.console.warn(f"{tensor}{warning['message']}")
        for code, count in shown.items():
            if count > _WARNINGS_SHOWN:
                self.console.warn(f"{count - _WARNINGS_SHOWN} more of kind {code}, see --json")


def _common_options() -> list[click.RichOption]:
    def flag(names: list[str], text: str) -> click.RichOption:
        return click.RichOption(names, is_flag=True, help=text, panel="Everywhere")

    return [
        flag(["--json"], "Print one JSON document on standard output and nothing else."),
        flag(["-q", "--quiet"], "Say nothing but errors."),
        flag(["-v", "--verbose"], "Say more, warnings of libraries included."),
        click.RichOption(
            ["--log-file"],
            type=click.Path(dir_okay=False, path_type=Path),
            help="Append everything to this file, tracebacks included.",
            panel="Everywhere",
        ),
        flag(["--no-color"], "No colors, also when NO_COLOR is set."),
        flag(["--traceback"], "Show the Python traceback of an error."),
    ]


class Verb(click.RichCommand):
    """A command whose callback gets the Run as first argument, without the common options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._common = _common_options()
        self.params.extend(self._common)

    def invoke(self, ctx: click.Context) -> Any:
        """Set up the run, then call the callback."""
        common = {str(option.name): ctx.params.pop(str(option.name)) for option in self._common}
        run = ctx.find_object(Run)
        assert run is not None, "main() passes the run"
        run.configure(str(self.name), dict(ctx.params), common)
        return super().invoke(ctx)
