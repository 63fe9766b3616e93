"""A person at a terminal: a conversation, and the bar that a long command shows."""

import contextlib
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.cli import PROGRAM
from tests.helpers.scripted_server import Script, delta, events, scripted_server
from tests.helpers.tiny import tiny_model


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *args: str | Path) -> None:
        self._screen, inside = pty.openpty()
        self.shown = ""
        self._seen = 0
        self.process = subprocess.Popen(
            [*PROGRAM, *map(str, args)],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env={**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        os.close(inside)

    def type(self, line: str) -> None:
        """Type a line and press Enter."""
        os.write(self._screen, line.encode() + b"\n")

    def wait_for(self, text: str, seconds: float = 90) -> None:
        """Read the screen until a text appears behind the one that was waited for before."""
        deadline = time.monotonic() + seconds
        while (found := self.shown.find(text, self._seen)) < 0:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._screen], [], [], 1.0)[0]:
                self.shown += self._read()
        self._seen = found + len(text)

    def end(self) -> int:
        """Read to the end and return the exit code."""
        while piece := self._read():
            self.shown += piece
        os.close(self._screen)
        return self.process.wait(60)

    def _read(self) -> str:
        try:
            return os.read(self._screen, 4096).decode(errors="replace")
        except OSError:  # the program has closed its side
            return ""


@pytest.fixture
def script() -> Script:
    script = Script()
    script.answer = events(delta("Good "), delta("day."), delta(None, "stop"), "[DONE]")
    return script


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    with scripted_server(script) as address:
        yield address


def test_conversation(url: str, script: Script) -> None:
    terminal = Terminal("chat", url, "--system", "Be kind.")
    terminal.wait_for("> ")
    terminal.type("Hello")
    terminal.wait_for("Good day.")
    terminal.wait_for("> ")
    terminal.type("Again")
    terminal.wait_for("Good day.")
    terminal.type("/clear")
    terminal.type("/what")
    terminal.wait_for("no command /what")
    terminal.type("Once more")
    terminal.wait_for("Good day.")
    terminal.type("/quit")
    assert terminal.end() == 0
    contents = [[m["content"] for m in asked["messages"]] for asked in script.asked]
    assert contents == [
        ["Be kind.", "Hello"],
        ["Be kind.", "Hello", "Good day.", "Again"],
        ["Be kind.", "Once more"],
    ]


def test_end_of_input_ends_the_conversation(url: str) -> None:
    terminal = Terminal("chat", url)
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_interrupt_at_the_prompt(url: str) -> None:
    terminal = Terminal("chat", url)
    terminal.wait_for("> ")
    # A signal between the prompt and the wait for a key is only seen with the next one.
    while terminal.process.poll() is None:
        terminal.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            terminal.process.wait(2)
    assert terminal.end() == 130
    assert "interrupted" in terminal.shown
    assert "Traceback" not in terminal.shown


def test_ruled_table() -> None:
    terminal = Terminal("list", "archs")
    assert terminal.end() == 0
    assert "─" in terminal.shown


def test_bar(tmp_path: Path) -> None:
    model = tiny_model("llama", tmp_path / "m")
    terminal = Terminal("convert", model, "-o", tmp_path / "o", "-f", "hf")
    assert terminal.end() == 0
    assert "21/21" in terminal.shown
    assert terminal.shown.count("\x1b[?25l") == terminal.shown.count("\x1b[?25h") == 1
