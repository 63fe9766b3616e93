"""The process that compiles and renders a chat template: bounded in time and memory.

A template comes with the model file, and no thread can be stopped while it loops or multiplies a
string, so it lives where the operating system can end it. Lines of JSON go in and out: first the
template, then one conversation at a time, each answered by a text or an error.
"""

import json
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

from quantkit.core.chat import ChatTemplate
from quantkit.errors import QuantkitError


def main() -> None:
    """Compile, then render until standard input closes."""
    setup: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    resource.setrlimit(resource.RLIMIT_AS, (setup["max_bytes"], setup["max_bytes"]))
    templates: list[ChatTemplate] = []

    def compile_template() -> str:  # Jinja computes constant expressions here already
        templates.append(ChatTemplate(setup["source"], setup["special"]))
        return ""

    _answer(compile_template, setup["seconds"])
    for line in sys.stdin.buffer:
        order = json.loads(line)

        def render(order: dict[str, Any] = order) -> str:
            opening: bool = order["open"]
            return templates[0].render(
                order["messages"], add_generation_prompt=opening, **order["more"]
            )

        _answer(render, setup["seconds"])


def _answer(work: Callable[[], str], seconds: float) -> None:
    # Processor time: a busy machine is no reason. The signal ends the process, whatever it does.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        answer = {"text": work()}
    except QuantkitError as error:
        answer = {"error": " ".join(error.message.split())}
    signal.setitimer(signal.ITIMER_PROF, 0)
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()
