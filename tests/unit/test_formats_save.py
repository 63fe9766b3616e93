"""Saving again, running out of space, being interrupted: what is left behind in each case."""

import os
import resource
import shutil
import tempfile
from pathlib import Path

import pytest

from quantkit.core.scheme import Scheme
from quantkit.errors import ModelError, ResourceError, UsageError
from quantkit.formats import FORMATS
from tests.helpers.folders import (
    assert_holds,
    float_tensors,
    plan_for,
    put_all,
    quantize_linears,
    snapshot,
    write_model,
)

HF = FORMATS.get("hf")


def test_replacing_leaves_exactly_the_new_set(tmp_path: Path) -> None:
    """C64: three shards, then one, then two of 8 bits, into one place."""
    first, second = float_tensors(seed=1), float_tensors(seed=2)
    third = quantize_linears(float_tensors(seed=3), Scheme.parse("w8a16-g32"))
    out = write_model(tmp_path / "out", first, shard_bytes=200_000)
    assert len(list(out.glob("*.safetensors"))) == 3
    before = snapshot(out)
    with pytest.raises(UsageError, match="exists"):
        write_model(out, second)
    assert snapshot(out) == before
    write_model(out, second, force=True)
    assert_holds(out, second)
    assert {p.name for p in out.glob("model*")} == {"model.safetensors"}
    write_model(out, third, force=True, shard_bytes=90_000)
    assert_holds(out, third)
    shards = {f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}
    assert {p.name for p in out.glob("model*")} == shards | {"model.safetensors.index.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_replacing_follows_a_link(tmp_path: Path) -> None:
    real = write_model(tmp_path / "real", float_tensors(seed=1))
    (tmp_path / "link").symlink_to(real)
    values = float_tensors(seed=2)
    write_model(tmp_path / "link", values, force=True)
    assert (tmp_path / "link").is_symlink()
    assert_holds(real, values)


def test_force_never_replaces_what_is_no_model(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="holds no model"):
        write_model(precious, float_tensors(), force=True)
    assert snapshot(precious) == {"thesis.txt": b"years of work"}
    (tmp_path / "empty").mkdir()
    write_model(tmp_path / "empty", float_tensors(), force=True)


def test_leftover_of_a_killed_run(tmp_path: Path) -> None:
    partial = tmp_path / "out.partial"
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(b"half")
    with pytest.raises(UsageError, match=r"out\.partial exists"):
        write_model(tmp_path / "out", float_tensors())
    assert (partial / "model.safetensors").read_bytes() == b"half"
    write_model(tmp_path / "out", float_tensors(), force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_leaving_by_an_exception(error: type[BaseException], tmp_path: Path) -> None:
    values = float_tensors()
    good = snapshot(write_model(tmp_path / "out", values))

    def fail() -> None:
        with HF.writer(tmp_path / "out", plan_for(values), force=True) as writer:
            writer.put("lm_head.weight", values["lm_head.weight"])
            assert (tmp_path / "out.partial").is_dir()
            raise error

    with pytest.raises(error):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert snapshot(tmp_path / "out") == good


def test_nothing_is_lost_or_written_twice(tmp_path: Path) -> None:
    values = float_tensors()

    def attempt(step: str) -> None:
        with HF.writer(tmp_path / "out", plan_for(values)) as writer:
            if step == "twice":
                writer.put("lm_head.weight", values["lm_head.weight"])
                writer.put("lm_head.weight", values["lm_head.weight"])
            elif step == "unknown":
                writer.put("x", values["lm_head.weight"])
            elif step == "shape":
                writer.put("lm_head.weight", values["lm_head.weight"][:1])
            elif step == "type":
                writer.put("lm_head.weight", values["lm_head.weight"].half())
            else:
                put_all(writer, dict(list(values.items())[1:]))
                writer.close({})

    for step, pattern in [
        ("twice", r"lm_head\.weight is written twice"),
        ("unknown", "x is not in the plan"),
        ("shape", r"lm_head\.weight has shape \(1, 64\)"),
        ("type", r"lm_head\.weight is torch\.float16, planned as torch\.float32"),
        ("lost", r"never written: model\.embed_tokens\.weight"),
    ]:
        with pytest.raises(AssertionError, match=pattern):
            attempt(step)
        assert not list(tmp_path.iterdir())


def test_space_is_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total, used, _ = shutil.disk_usage(tmp_path)
    usage = type(shutil.disk_usage(tmp_path))(total, used, 300_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ResourceError, match=r"out needs 1\.\d MB, but .* has 300\.0 kB free"):
        HF.writer(tmp_path / "out", plan_for(float_tensors()))
    assert not list(tmp_path.iterdir())


def test_parent_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"nowhere does not exist") as caught:
        HF.writer(tmp_path / "nowhere" / "out", plan_for(float_tensors()))
    assert caught.value.exit_code == 4
    assert not list(tmp_path.iterdir())


def test_companion_names_stay_inside(tmp_path: Path) -> None:
    for name in ("../evil", "/evil", "a/b", "", "."):
        with pytest.raises(ModelError, match="plain file name"):
            write_model(tmp_path / "out", float_tensors(), companions={name: b""})
    assert not list(tmp_path.iterdir())


def child(
    out: Path, *, limit: int = 0, user: int = 0, force: bool = False, padding: int = 0
) -> str:
    """Write in a forked process, under a file size limit or as another user; return its error."""
    values = float_tensors()
    report = {"padding": ["x" * 100] * padding}
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if limit:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            if user and os.geteuid() == 0:
                os.setuid(user)
            with HF.writer(out, plan_for(values), force=force) as writer:
                put_all(writer, values)
                writer.close(report)
        except ResourceError as error:
            os.write(sink, error.message.encode())
            status = error.exit_code
        finally:
            os._exit(status)
    os.close(sink)
    with open(source, encoding="utf-8") as pipe:
        message = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
    assert "\n" not in message
    return message


@pytest.mark.parametrize("force", [False, True])
def test_file_size_limit(force: bool, tmp_path: Path) -> None:
    """C63: the disk gives up half way; an earlier good output stays as it is."""
    good = snapshot(write_model(tmp_path / "out", float_tensors(seed=9))) if force else None
    message = child(tmp_path / "out", limit=200_000, force=force)
    assert "model.safetensors" in message
    assert "file too large" in message
    if good is None:
        assert not list(tmp_path.iterdir())
    else:
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        assert snapshot(tmp_path / "out") == good


def test_limit_hits_the_last_file_only(tmp_path: Path) -> None:
    message = child(tmp_path / "out", limit=600_000, padding=10_000)
    assert "quantkit.json" in message
    assert not list(tmp_path.iterdir())


def test_read_only_place() -> None:
    with tempfile.TemporaryDirectory() as name:
        parent = Path(name)
        parent.chmod(0o555)
        message = child(parent / "out", user=65534)
        assert f"cannot write {parent / 'out.partial'}: permission denied" in message
        assert not list(parent.iterdir())
        parent.chmod(0o755)


def test_rename_that_fails_brings_the_old_output_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = snapshot(write_model(tmp_path / "out", float_tensors(seed=1)))
    rename = os.rename

    def failing(source: Path, target: Path) -> None:
        if str(source).endswith(".partial"):
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(ResourceError, match="no space left on device"):
        write_model(tmp_path / "out", float_tensors(seed=2), force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert snapshot(tmp_path / "out") == good
