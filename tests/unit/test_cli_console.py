"""Console: which stream gets what, and how."""

import io
import os

import pytest

from quantkit.cli.console import Console, plain_table, write
from quantkit.cli.progress import BarProgress, PlainProgress
from quantkit.core.progress import SilentProgress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def color_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_data_and_narration_go_apart() -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console(out, err)
    console.data("value")
    console.say("working")
    console.warn("odd")
    console.fail("broken", "mend it")
    assert out.getvalue() == "value\n"
    assert err.getvalue() == "working\nwarning: odd\nerror: broken\nhint: mend it\n"


def test_json_mode_keeps_standard_output_for_the_document() -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console(out, err, json=True)
    console.data("value")
    console.table(["a"], [[1]])
    console.document({"x": float("nan")})
    assert out.getvalue() == '{\n  "x": null\n}\n'


def test_quiet_leaves_errors_only_but_the_transcript_has_all() -> None:
    err, lines = io.StringIO(), list[str]()
    console = Console(io.StringIO(), err, quiet=True)
    console.transcript = lines.append
    console.say("working")
    console.warn("odd")
    console.fail("broken", None)
    assert err.getvalue() == "error: broken\n"
    assert lines == ["working", "warning: odd", "error: broken"]


def test_table_elsewhere_is_aligned_text() -> None:
    out = io.StringIO()
    Console(out, io.StringIO()).table(["name", "value"], [["a", 1.25], ["long name", None]])
    assert out.getvalue() == "name       value\na           1.25\nlong name      -\n"


def test_a_column_with_a_word_is_set_to_the_left() -> None:
    assert plain_table(["a"], [["1"], ["xyz"]], [False]) == "a\n1\nxyz\n"


def test_table_on_a_terminal_is_ruled() -> None:
    out = Terminal()
    Console(out, io.StringIO()).table(["name"], [["[b]a[/b]"]])
    assert "─" in out.getvalue()
    assert "[b]a[/b]" in out.getvalue()  # cells are text, not markup


@pytest.mark.parametrize(
    ("color", "variable", "colored"), [(True, "", True), (False, "", False), (True, "1", False)]
)
def test_color(monkeypatch: pytest.MonkeyPatch, color: bool, variable: str, colored: bool) -> None:
    monkeypatch.setenv("NO_COLOR", variable)
    err = Terminal()
    Console(io.StringIO(), err, color=color).fail("broken", None)
    assert ("\x1b[31m" in err.getvalue()) is colored


def test_progress_fits_the_stream() -> None:
    plain = Console(io.StringIO(), io.StringIO())
    assert isinstance(plain.progress(), PlainProgress)
    assert isinstance(Console(io.StringIO(), io.StringIO(), quiet=True).progress(), SilentProgress)
    terminal = Console(io.StringIO(), Terminal())
    assert isinstance(terminal.progress(), BarProgress)


def test_dumb_terminals_get_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(Console(io.StringIO(), Terminal()).progress(), PlainProgress)


def test_an_error_during_a_bar_gives_the_terminal_back() -> None:
    err = Terminal()
    console = Console(io.StringIO(), err)
    console.progress().start("quantize", 4, "block")
    console.say("a line above the bar")
    console.fail("broken", "mend it")
    shown = err.getvalue()
    assert shown.index("\x1b[?25h") < shown.index("error:")
    assert "a line above the bar" in shown


def test_a_reader_that_left_stops_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        console = Console(stream, io.StringIO())
        console.data("x" * 100_000)
        assert not console.is_open
        console.data("more")


def test_characters_that_the_stream_cannot_hold_are_replaced() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    assert write(stream, "né\n")
    assert raw.getvalue() == b"n?\n"
