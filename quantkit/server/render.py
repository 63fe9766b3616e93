"""Chat templates rendered off the event loop, in a process that can be stopped."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from quantkit.errors import DataError, ModelError, UsageError

_CHILD = (
    "import sys; sys.path[:] = sys.argv[1:]; from quantkit.server.render_child import main; main()"
)


class Renderer:
    """One chat template and the process that renders it, started anew when it was stopped.

    Args:
        source: the Jinja text.
        special: values of ``bos_token`` and the like.
        seconds: processor time that one conversation may take.
        max_bytes: address space of the process.

    Raises:
        ModelError: the template has a syntax error, or cannot be compiled within the bounds.
    """

    def __init__(
        self,
        source: str,
        special: Mapping[str, str],
        *,
        seconds: float = 5.0,
        max_bytes: int = 512 * 1024 * 1024,
    ) -> None:
        self.seconds = seconds
        self._setup = _line(
            {
                "source": source,
                "special": dict(special),
                "seconds": seconds,
                "max_bytes": max_bytes,
            }
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._stop: weakref.finalize[Any, Renderer] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chat-template")
        try:
            self._start()
        except DataError as error:
            raise ModelError(
                error.message, hint="give a working template with --chat-template"
            ) from None

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """Text of a conversation.

        Raises:
            DataError: the template refused the messages, failed on them, or took too much time or
                memory.
        """
        try:
            order = _line({"messages": messages, "open": add_generation_prompt, "more": variables})
        except RecursionError:
            raise DataError("chat_template_kwargs: nested too deeply") from None
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._render, order)

    def _render(self, order: bytes) -> str:
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._start()
        return self._ask(order)

    def _ask(self, order: bytes) -> str:
        """Send a line and read the answer."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        answer = b""
        try:
            process.stdin.write(order)
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            pass  # it ended; the missing answer says so
        if not answer.endswith(b"\n"):
            code = self._end()
            if code == -signal.SIGPROF:
                raise DataError(
                    f"the chat template took more than {self.seconds:g} s of processor time"
                )
            raise DataError("the chat template ran out of memory or crashed")
        reply = json.loads(answer)
        if "error" in reply:
            raise DataError(reply["error"])
        return str(reply["text"])

    def _start(self) -> None:
        # Out of reach of the terminal's Ctrl-C: a draining server still renders.
        process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._process = process
        self._stop = weakref.finalize(self, _stop, process)
        self._ask(self._setup)

    def _end(self) -> int | None:
        """Stop the process, if there is one, and return how it ended."""
        if self._stop is None or self._process is None:
            return None
        process, self._process = self._process, None
        self._stop()
        return process.returncode

    def close(self) -> None:
        """Stop the process. A conversation that is being rendered fails."""
        if (process := self._process) is not None:
            process.kill()
        self._thread.submit(self._end)
        self._thread.shutdown()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # does nothing to a process that has ended
    with contextlib.suppress(BrokenPipeError), process:  # closes the pipes and waits
        pass


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def read_template(template: str | Path | None) -> str | None:
    """Jinja text, from a file or as it stands.

    Raises:
        UsageError: there is no such file and it does not look like Jinja text.
    """
    if template is None:
        return None
    if isinstance(template, str) and ("{" in template or "\n" in template):
        return template
    try:
        return Path(template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UsageError(
            f"--chat-template {template}: {reason}", hint="give a file with the Jinja text"
        ) from None
