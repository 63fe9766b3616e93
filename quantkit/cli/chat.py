"""quantkit chat: talk to a model on a terminal, or ask it one thing through a pipe."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import rich_click as click

from quantkit.cli.command import Run, Verb
from quantkit.cli.types import COUNT, MODEL
from quantkit.errors import UsageError

Message = dict[str, str]
Answer = Callable[[Sequence[Message]], Iterator[tuple[str, str | None]]]
"""Conversation -> pieces of text, the last one with its finish reason."""

_COMMANDS = "/quit ends, /clear forgets the conversation"


@click.command("chat", cls=Verb)
@click.argument("model", metavar="MODEL|URL")
@click.option("--system", metavar="TEXT", help="System prompt.")
@click.option("--max-tokens", type=COUNT, default=512, show_default=True, help="Of one answer.")
@click.option(
    "--temperature",
    type=click.FloatRange(min=0.0),
    default=0.7,
    show_default=True,
    help="0 always takes the likeliest token.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Makes the answers repeatable.")
@click.option("--api-key", metavar="KEY", help="Key of the server, for a URL.")
@click.option("--model-name", metavar="NAME", help="Model on the server, for a URL.")
@click.option("--device", default="auto", help="auto, cpu, cuda or cuda:N, for a model here.")
@click.pass_obj
def command(
    run: Run,
    /,
    *,
    model: str,
    system: str | None,
    max_tokens: int,
    temperature: float,
    seed: int | None,
    api_key: str | None,
    model_name: str | None,
    device: str,
) -> None:
    """Talk to MODEL, or to the server at URL.

    On a terminal this is a conversation. Otherwise standard input is one message, and the answer
    goes to standard output.
    """
    is_url = model.startswith(("http://", "https://"))
    if not is_url:
        model = MODEL.convert(model, None, None)
    talks = sys.stdin.isatty()
    if talks and run.console.json:
        raise UsageError("--json needs a message on standard input", hint="echo Hi | quantkit chat")
    message = "" if talks else sys.stdin.read().strip()
    if not talks and not message:
        raise UsageError("standard input holds no message", hint="echo Hi | quantkit chat MODEL")
    opening: list[Message] = [{"role": "system", "content": system}] if system else []
    settings: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature}
    if seed is not None:
        settings["seed"] = seed
    with (
        _remote(model, api_key, model_name, settings)
        if is_url
        else _local(model, device, settings) as answer
    ):
        if talks:
            _converse(run, answer, opening)
        else:
            text, reason = _say(run, answer([*opening, {"role": "user", "content": message}]))
            run.report.result = {"answer": text, "finish_reason": reason}


@contextlib.contextmanager
def _remote(
    url: str, api_key: str | None, model_name: str | None, settings: dict[str, Any]
) -> Iterator[Answer]:
    from quantkit.cli.remote import RemoteChat

    server = RemoteChat(url, api_key=api_key, model=model_name)
    with contextlib.closing(server):
        yield lambda messages: server.stream(messages, settings)


@contextlib.contextmanager
def _local(model: str, device: str, settings: dict[str, Any]) -> Iterator[Answer]:
    from quantkit.runtime import SamplingParams, load

    params = SamplingParams(**settings)
    with load(model, device=device, max_num_seqs=1) as llm:

        def answer(messages: Sequence[Message]) -> Iterator[tuple[str, str | None]]:
            for output in llm.stream_chat(messages, params):
                yield output.text, output.finish_reason

        yield answer


def _converse(run: Run, answer: Answer, opening: list[Message]) -> None:
    """Take turns until the person leaves."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # line editing and history in input()

    run.console.say(_COMMANDS)
    messages = list(opening)
    while run.console.is_open:
        try:
            with contextlib.redirect_stdout(run.out):
                message = input("> ").strip()
        except EOFError:
            run.console.data("")
            return
        if message == "/quit":
            return
        if message == "/clear":
            messages = list(opening)
        elif message.startswith("/"):
            run.console.say(f"no command {message}; {_COMMANDS}")
        elif message:
            messages.append({"role": "user", "content": message})
            text, _ = _say(run, answer(messages))
            messages.append({"role": "assistant", "content": text})


def _say(run: Run, pieces: Iterator[tuple[str, str | None]]) -> tuple[str, str | None]:
    """Write an answer as it comes; Ctrl-C on a terminal ends the answer, not the conversation."""
    text = ""
    reason: str | None = None
    try:
        for piece, finish in pieces:
            text, reason = text + piece, finish or reason
            run.console.data(piece, end="")
            if not run.console.is_open:
                break
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
        reason = "abort"
    run.console.data("")
    if reason == "length":
        run.console.say("the answer was cut: --max-tokens or the context length is reached")
    return text, reason
