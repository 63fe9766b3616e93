"""Entry point: finds the verb, and turns every way to end into an exit code."""

import sys
from collections.abc import Sequence
from importlib import import_module

import rich_click as click
from click.exceptions import Exit

from quantkit import __version__
from quantkit.cli.command import Run
from quantkit.core.registry import suggest
from quantkit.errors import EXIT_INTERRUPTED, EXIT_OK, UsageError

VERBS = ("quantize", "eval", "serve", "chat", "convert", "inspect", "list", "doctor")


class LazyGroup(click.RichGroup):
    """Imports the file of a verb when the verb is used or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Verbs in the order in which people need them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's command, or None."""
        if cmd_name not in VERBS:
            return None
        command = import_module(f"quantkit.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown verb is answered with the near ones."""
        if args[0] not in VERBS and not args[0].startswith("-"):
            raise UsageError(
                f"no such command {args[0]!r}", hint=suggest(args[0], VERBS, "command")
            )
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "QUANTKIT",
        "token_normalize_func": lambda token: token.replace("_", "-"),
    },
    epilog="Every flag has an environment variable: QUANTKIT_QUANTIZE_BITS=3 is quantize --bits 3.",
)
@click.version_option(__version__, message="quantkit %(version)s")
def cli() -> None:
    """Quantize a language model, prove what the file cost in quality, and serve it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Args:
        argv: arguments without the program's name; those of the process when None.
    """
    args = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        return _main(args)
    except KeyboardInterrupt:  # a second Ctrl-C, while the first was answered
        return EXIT_INTERRUPTED


def _main(args: list[str]) -> int:
    with Run(args) as run:
        try:
            with cli.make_context("quantkit", args, obj=run) as context:
                cli.invoke(context)
            run.finish()
        except Exit as ending:
            return ending.exit_code
        except BrokenPipeError:  # of a help page; the console survives it by itself
            run.hush()
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            return run.fail(error)
    return EXIT_OK
