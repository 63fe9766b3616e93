"""Every way to end a command line: its exit code, and what is on the two streams."""

import errno
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from quantkit.cli import list as list_verb
from quantkit.cli.main import VERBS, main
from quantkit.errors import CheckFailed, DataError, ModelError, ResourceError, UsageError
from tests.helpers.cli import Outcome, run_cli

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Callable[..., Outcome]:
    """Runs a verb whose work is the given function."""

    def run(work: Callable[[], Any], *flags: str | Path) -> Outcome:
        monkeypatch.setattr(list_verb, "list_parts", lambda kind: work())
        return run_cli(capsys, "list", "methods", *flags)

    return run


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def work() -> NoReturn:
        raise error

    return work


def test_help_lists_every_verb(capsys: Capture) -> None:
    outcome = run_cli(capsys, "--help")
    assert outcome.code == 0
    assert outcome.err == ""
    assert all(f" {name} " in outcome.out for name in VERBS)
    assert run_cli(capsys) == outcome


@pytest.mark.parametrize("name", VERBS)
def test_help_of_a_verb(capsys: Capture, name: str) -> None:
    outcome = run_cli(capsys, name, "-h")
    assert outcome.code == 0
    for flag in ("--json", "--quiet", "--verbose", "--log-file", "--no-color", "--traceback"):
        assert flag in outcome.out


def test_version(capsys: Capture) -> None:
    from quantkit import __version__

    assert run_cli(capsys, "--version").out == f"quantkit {__version__}\n"


def test_unknown_verb(capsys: Capture) -> None:
    outcome = run_cli(capsys, "quantise", "x")
    outcome.assert_failed(2, "no such command 'quantise'", "did you mean quantize?")
    assert outcome.out == ""


def test_unknown_flag(capsys: Capture) -> None:
    run_cli(capsys, "eval", "x", "--batchsize", "3").assert_failed(2, "did you mean --batch-size")


@pytest.mark.parametrize("flag", ["--group_size", "--group-size"])
def test_underscores_in_flags(capsys: Capture, flag: str) -> None:
    run_cli(capsys, "quantize", "./none", flag, "x").assert_failed(2, "'x' is not a whole number")


def test_environment_mirrors_the_flags(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTKIT_QUANTIZE_BITS", "many")
    run_cli(capsys, "quantize", "org/x").assert_failed(2, "'many' is not a whole number")
    monkeypatch.setenv("QUANTKIT_LIST_JSON", "1")
    assert run_cli(capsys, "list", "archs").document["status"] == "ok"


def test_success(verb: Callable[..., Outcome]) -> None:
    outcome = verb(lambda: [{"name": "a", "n": 1}])
    assert outcome == Outcome(0, "name  n\na     1\n", "")


def test_document(verb: Callable[..., Outcome]) -> None:
    document = verb(lambda: [{"name": "a"}], "--json").document
    assert document["command"] == "list"
    assert document["status"] == "ok"
    assert document["args"] == {"kind": "methods"}
    assert document["result"] == {"methods": [{"name": "a"}]}
    assert document["error"] is None


@pytest.mark.parametrize(
    ("kind", "code", "status"),
    [
        (UsageError, 2, "error"),
        (ModelError, 3, "error"),
        (DataError, 3, "error"),
        (ResourceError, 4, "error"),
        (CheckFailed, 5, "failed"),
    ],
)
def test_expected_failures(
    verb: Callable[..., Outcome], kind: type[UsageError], code: int, status: str
) -> None:
    outcome = verb(raising(kind("layer 3 is\n odd\x1b[2J", hint="look at it")))
    outcome.assert_failed(code, "error: layer 3 is odd?[2J", "hint: look at it")
    assert outcome.out == ""
    outcome = verb(raising(kind("layer 3 is odd", hint="look at it")), "--json")
    outcome.assert_failed(code)
    assert outcome.document["status"] == status
    assert outcome.document["error"] == {
        "type": kind.__name__,
        "message": "layer 3 is odd",
        "hint": "look at it",
        "exit_code": code,
    }


@pytest.mark.parametrize("kind", [UsageError, ModelError, DataError, ResourceError])
def test_a_failure_without_a_hint_gets_one(
    verb: Callable[..., Outcome], kind: type[UsageError]
) -> None:
    verb(raising(kind("odd"))).assert_failed(kind.exit_code, "error: odd")


def test_bug(verb: Callable[..., Outcome]) -> None:
    outcome = verb(raising(ZeroDivisionError("division by zero")), "--json")
    outcome.assert_failed(1, "unexpected ZeroDivisionError", "(this is a bug)", "--traceback")
    assert outcome.document["error"]["type"] == "ZeroDivisionError"
    assert outcome.document["error"]["exit_code"] == 1


def test_traceback_only_when_asked(verb: Callable[..., Outcome]) -> None:
    outcome = verb(raising(ZeroDivisionError("oh")), "--traceback", "--json")
    assert outcome.code == 1
    assert "Traceback (most recent call last)" in outcome.err
    assert outcome.err.splitlines()[-2].startswith("error: ")
    assert outcome.document["status"] == "error"


def test_log_file_has_the_traceback_and_the_narration(
    verb: Callable[..., Outcome], tmp_path: Path
) -> None:
    log = tmp_path / "run.log"

    def work() -> NoReturn:
        logging.getLogger("quantkit.x").info("step one")
        warnings.warn("beware", RuntimeWarning, stacklevel=1)
        raise AssertionError

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        outcome = verb(work, "--log-file", log)
    outcome.assert_failed(1, "AssertionError")
    text = log.read_text(encoding="utf-8")
    for words in ("Traceback", "step one", "beware", "error: unexpected AssertionError", "hint:"):
        assert words in text
        assert words == "hint:" or words in outcome.err or not words.startswith("error")
    assert "step one" not in outcome.err
    assert "beware" not in outcome.err


def test_verbose_shows_what_libraries_say(verb: Callable[..., Outcome]) -> None:
    def work() -> list[dict[str, str]]:
        logging.getLogger("some.library").info("details")
        return []

    assert "details" in verb(work, "-v").err
    assert verb(work).err == ""


def test_log_file_that_cannot_be_written(verb: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = verb(list, "--log-file", tmp_path / "none" / "x.log")
    outcome.assert_failed(4, "--log-file", "No such file or directory")


def test_nothing_is_left_behind_in_this_process(verb: Callable[..., Outcome]) -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level, warnings.showwarning)
    verb(raising(ModelError("odd")))
    assert (list(root.handlers), root.level, warnings.showwarning) == before


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "out/model.safetensors"),
        PermissionError(errno.EACCES, "Permission denied", "out"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory."),
    ],
)
def test_resources(verb: Callable[..., Outcome], error: Exception) -> None:
    verb(raising(error)).assert_failed(4)


def test_interrupted(verb: Callable[..., Outcome]) -> None:
    outcome = verb(raising(KeyboardInterrupt()), "--json")
    assert outcome.code == 130
    assert outcome.err == "error: interrupted\n"
    assert outcome.document["error"]["exit_code"] == 130


def test_interrupted_twice(verb: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantkit.cli.command.explain", lambda error: raising(error)())
    assert verb(raising(KeyboardInterrupt())).code == 130


def test_a_library_that_ends_the_program(verb: Callable[..., Outcome]) -> None:
    verb(raising(SystemExit(3))).assert_failed(1, "unexpected SystemExit: 3")


def test_prints_of_libraries_do_not_mix_with_the_data(verb: Callable[..., Outcome]) -> None:
    def work() -> list[dict[str, str]]:
        print("noise")
        return [{"name": "a"}]

    outcome = verb(work, "--json")
    assert outcome.document["status"] == "ok"
    assert "noise" in outcome.err


def test_a_line_that_cannot_be_parsed_is_reported_in_json_too(capsys: Capture) -> None:
    outcome = run_cli(capsys, "quantize", "--json", "--bits", "many", "x")
    outcome.assert_failed(2)
    assert outcome.document["command"] == "quantize"
    assert outcome.document["error"]["exit_code"] == 2


def test_json_after_the_end_of_the_flags_is_no_flag(capsys: Capture) -> None:
    assert run_cli(capsys, "list", "--", "--json").out == ""


def test_keys_are_not_repeated_in_the_document(capsys: Capture) -> None:
    outcome = run_cli(capsys, "serve", "./none", "--api-key", "topsecret", "--json")
    assert "topsecret" not in outcome.out + outcome.err


def test_main_returns_the_code(capsys: Capture) -> None:
    assert main(["list", "archs", "-q"]) == 0
    assert "llama" in capsys.readouterr().out
