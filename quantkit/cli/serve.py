"""quantkit serve: an OpenAI-compatible server for one model."""

import rich_click as click

from quantkit.cli.command import Run, Verb
from quantkit.cli.types import COUNT, MODEL, CountType

_MODEL, _NET, _LIMITS = "Model", "Network", "Limits"


@click.command("serve", cls=Verb)
@click.argument("model", type=MODEL, metavar="MODEL")
@click.option(
    "--served-model-name",
    metavar="NAME",
    help="Name of the model in requests; the last part of MODEL if not given.",
    panel=_MODEL,
)
@click.option(
    "--chat-template", metavar="FILE", help="Template in place of the model's own.", panel=_MODEL
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address.", panel=_NET)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port; 0 takes a free one.",
    panel=_NET,
)
@click.option(
    "--api-key",
    "api_keys",
    multiple=True,
    metavar="KEY",
    help="Demand this key for everything but /health. May be repeated.",
    panel=_NET,
)
@click.option(
    "--max-model-len", type=COUNT, help="Tokens of prompt and answer together.", panel=_LIMITS
)
@click.option(
    "--max-num-seqs",
    type=COUNT,
    default=16,
    show_default=True,
    help="Running at once.",
    panel=_LIMITS,
)
@click.option(
    "--max-queued-requests",
    type=CountType(minimum=0),
    default=256,
    show_default=True,
    help="Waiting at once; more are answered with 429.",
    panel=_LIMITS,
)
@click.option(
    "--shutdown-timeout",
    type=click.FloatRange(min=0.0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Time that running requests get after the first Ctrl-C; the second ends at once.",
    panel=_LIMITS,
)
@click.pass_obj
def command(
    run: Run,
    /,
    *,
    model: str,
    served_model_name: str | None,
    chat_template: str | None,
    host: str,
    port: int,
    api_keys: tuple[str, ...],
    max_model_len: int | None,
    max_num_seqs: int,
    max_queued_requests: int,
    shutdown_timeout: float,
) -> None:
    """Serve MODEL with the OpenAI API until Ctrl-C."""
    from quantkit.server import serve

    run.console.say(f"loading {model}")
    serve(
        model,
        host=host,
        port=port,
        api_keys=api_keys,
        served_model_name=served_model_name,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        chat_template=chat_template,
        shutdown_timeout=shutdown_timeout,
        max_queue=max_queued_requests,
        ready=lambda address: run.console.say(f"serving {model} at {address}/v1, Ctrl-C ends it"),
    )
