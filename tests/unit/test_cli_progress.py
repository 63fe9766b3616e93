"""Progress as plain lines and as a bar."""

import io

import pytest

from quantkit.cli.progress import BarProgress, PlainProgress, clock_text
from quantkit.core.progress import Progress, SilentProgress


class Lines(list[str]):
    """Collects what is said."""

    def say(self, line: str) -> None:
        self.append(line)


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_one_line_per_slow_unit_with_the_time_left() -> None:
    lines, clock = Lines(), Clock()
    progress: Progress = PlainProgress(lines, clock)
    progress.start("quantize", 30, "block")
    for _ in range(3):
        clock.now += 4
        progress.advance()
    assert lines == [
        "quantize: 30 blocks",
        "quantize: block 1/30 0:04 elapsed, 1:56 left",
        "quantize: block 2/30 0:08 elapsed, 1:52 left",
        "quantize: block 3/30 0:12 elapsed, 1:48 left",
    ]


def test_quick_units_are_summed_up_and_the_last_is_always_said() -> None:
    lines, clock = Lines(), Clock()
    progress = PlainProgress(lines, clock)
    progress.start("evaluate", 1000, "window")
    for _ in range(1000):
        clock.now += 0.01
        progress.advance(note="kl 0.1")
    progress.done()
    assert len(lines) == 1 + 5  # ten seconds, a line every two
    assert lines[-1] == "evaluate: window 1000/1000 (kl 0.1) 0:10 elapsed"


def test_a_total_that_is_not_known() -> None:
    lines, clock = Lines(), Clock()
    progress = PlainProgress(lines, clock)
    progress.start("read", 0, "document")
    progress.advance(7)
    progress.done()
    assert lines == ["read", "read: document 7 0:00 elapsed"]


def test_a_second_task_begins_afresh() -> None:
    lines, clock = Lines(), Clock()
    progress = PlainProgress(lines, clock)
    progress.start("first", 5, "step")
    progress.advance(3)
    clock.now += 50
    progress.start("second", 2, "step")
    clock.now += 10
    progress.advance(2)
    assert lines[-1] == "second: step 2/2 0:10 elapsed"


def test_log_lines_pass() -> None:
    lines = Lines()
    PlainProgress(lines).log("kept lm_head")
    assert lines == ["kept lm_head"]


def test_silence() -> None:
    progress: Progress = SilentProgress()
    progress.start("x", 1, "y")
    progress.advance()
    progress.log("z")
    progress.done()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (7.4, "0:07"), (59.6, "1:00"), (754, "12:34"), (3723, "1:02:03")],
)
def test_clock(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_bar_shows_count_and_gives_the_terminal_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream, lines = Terminal(), Lines()
    bar = BarProgress(stream, color=False, log=lines.say)
    bar.log("before")
    bar.start("quantize", 4, "block")
    bar.advance(3, "model.layers.2")
    bar.log("a [line] with brackets")
    bar.done()
    shown = stream.getvalue()
    assert lines == ["before"]
    assert "3/4" in shown
    assert "blocks" in shown
    assert "a [line] with brackets" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # cursor hidden, then shown


def test_bar_closes_whatever_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    bar = BarProgress(stream, color=True, log=lambda line: None)
    bar.close()
    bar.start("a", 2, "b")
    bar.start("c", 0, "d")  # the first was never ended
    bar.close()
    bar.close()
    assert stream.getvalue().count("\x1b[?25h") == 2
