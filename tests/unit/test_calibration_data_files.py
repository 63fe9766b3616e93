"""Where documents come from: encodings, large files, JSONL, folders, paths that do not exist."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.calibration import textfile
from quantkit.calibration.data import load_windows
from quantkit.calibration.sources import looks_like_path
from quantkit.calibration.textfile import read_pieces, split_text, squeeze_blank_lines
from quantkit.errors import DataError, UsageError


class ByteTokenizer:
    has_chat_template = True

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        return self.encode("".join(f"<{m['role']}>{m['content']}</>" for m in messages))


def load(name: str | Path, num_samples: int = 4, seq_len: int = 32, **options: Any):
    windows = load_windows(
        ByteTokenizer(), [str(name)], num_samples, seq_len, warn=lambda _: None, **options
    )
    return windows, [
        bytes(ids[docs >= 0].tolist()).decode("utf-8", "replace")
        for ids, docs in zip(windows.ids, windows.docs, strict=True)
    ]


@pytest.fixture
def blocked(monkeypatch) -> list[str]:
    """Every attempt to connect or to resolve a name is noted and fails."""
    attempts: list[str] = []

    def refuse(*args: Any, **kwargs: Any) -> None:
        attempts.append(repr(args))
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return attempts


def test_utf8_mark_is_no_text_and_line_ends_are_one(tmp_path):
    plain = tmp_path / "plain.txt"
    plain.write_bytes("naïve café\nзавтра\n日本\n".encode())
    marked = tmp_path / "marked.txt"
    marked.write_bytes(b"\xef\xbb\xbf" + "naïve café\r\nзавтра\r日本\r\n".encode())
    first, second = load(plain, 1, 64)[0], load(marked, 1, 64)[0]
    assert first.digest == second.digest
    assert first.sources[0].digest == second.sources[0].digest
    # Further in, the same character is text.
    inner = tmp_path / "inner.txt"
    inner.write_bytes("a\ufeffb".encode())
    assert load(inner)[1] == ["a\ufeffb"]


@pytest.mark.parametrize(
    ("data", "line", "offset", "what"),
    [
        (b"first\ncaf\xe9 au lait\n", 2, 9, "0xe9"),
        (b"first\nsecond\nthi\0rd\n", 3, 16, "NUL"),
        (b"\xef\xbb\xbfok\n\xff\n", 2, 6, "0xff"),
        (b"cut \xe6\x97", 1, 4, "0xe6"),
        ("wide".encode("utf-16"), 1, 0, "UTF-16"),
        ("wide".encode("utf-32"), 1, 0, "UTF-32"),
        ("wide".encode("utf-16-le"), 1, 1, "NUL"),
    ],
)
@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_bytes_that_are_no_text(tmp_path, data, line, offset, what, suffix):
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        load(path)
    message = caught.value.message
    assert str(path) in message
    assert what in message
    assert f"byte offset {offset}" in message
    assert what.startswith("UTF") or f"line {line}," in message
    assert "\n" not in message
    assert caught.value.hint


def test_a_megabyte_in_one_line(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("日本語 and words " * 50_000, encoding="utf-8")
    windows, texts = load(path, 20, 64)
    assert windows.num_tokens == 20 * 64
    assert all("本" in text for text in texts)
    assert load(path, 3, 64, pack=False)[0].num_windows == 1


_LOCALE_SCRIPT = """
import sys
from quantkit.calibration.data import load_windows
from quantkit.errors import DataError

class Bytes:
    has_chat_template = True
    def encode(self, text): return list(text.encode("utf-8"))
    def encode_chat(self, messages): return self.encode(str(messages))

def digest(name):
    try:
        return load_windows(Bytes(), [name], 2, 16, warn=lambda _: None).digest
    except DataError as error:
        return ascii(error.message)

if __name__ == "__main__":
    print(*map(digest, sys.argv[1:]), sep="\\n")
"""


def test_the_locale_changes_nothing(tmp_path, monkeypatch):
    files = {
        "utf8.txt": "naïve завтра 日本 🙂\n".encode() * 4,
        "bom.txt": b"\xef\xbb\xbf" + "naïve завтра\r\n".encode() * 4,
        "lines.jsonl": json.dumps({"text": "naïve 日本 🙂" * 4}, ensure_ascii=False).encode(),
        "latin.txt": b"caf\xe9\n",
        "nul.txt": b"a\0b\n",
        "long.txt": "é ".encode() * 350_000,
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    names = [*files, "builtin"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHON"))}
    clean |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", _LOCALE_SCRIPT, *names],
        cwd=tmp_path,
        env=clean | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    under_c = done.stdout.splitlines()
    assert under_c[3] == "'latin.txt, line 1, byte offset 3: byte 0xe9, which is not UTF-8'"
    assert under_c[4] == "'nul.txt, line 1, byte offset 1: a NUL byte'"
    monkeypatch.chdir(tmp_path)
    here: dict[str, Any] = {"__name__": "here"}
    exec(_LOCALE_SCRIPT, here)
    assert under_c == [here["digest"](name) for name in names]
    assert len({*under_c}) == 7


def test_large_file_is_read_in_spread_pieces_of_whole_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(textfile, "PIECE_BYTES", 1000)
    lines = [f"{n:05d} " + "ö" * (n % 37) + "\n" for n in range(2000)]
    path = tmp_path / "large.txt"
    path.write_text("".join(lines), encoding="utf-8")
    size = path.stat().st_size
    for budget in (2000, 7000, size - 1):
        pieces = read_pieces(path, budget)
        assert len(pieces) == budget // 1000
        read = [line + "\n" for piece in pieces for line in piece.text.split("\n") if line]
        assert set(read) <= set(lines)
        assert len(read) == len(set(read))
        assert read == sorted(read)
        assert pieces[0].start_bytes == 0
        assert pieces[-1].start_bytes > size - 1200
        for piece in pieces:
            data = path.read_bytes()[piece.start_bytes :]
            assert data.startswith(piece.text.encode())
    assert len(read) > 0.9 * len(lines)
    (whole,) = read_pieces(path, size)
    assert whole.text == "".join(lines)


@pytest.mark.parametrize("shift", range(4))
def test_cuts_within_an_endless_line_keep_characters_whole(tmp_path, monkeypatch, shift):
    monkeypatch.setattr(textfile, "PIECE_BYTES", 1000)
    path = tmp_path / "large.txt"
    path.write_text("x" * shift + "aé日🙂" * 5000, encoding="utf-8")
    pieces = read_pieces(path, 9000, line_bytes=64)
    assert len(pieces) == 9
    for piece in pieces:
        assert 800 < len(piece.text.encode()) < 1100
        assert set(piece.text) <= set("xaé日🙂")


def test_bad_byte_far_into_a_large_file_is_located(tmp_path, monkeypatch):
    monkeypatch.setattr(textfile, "PIECE_BYTES", 1000)
    data = bytearray(b"some line\n" * 1000)
    data[-5] = 0xFF
    path = tmp_path / "large.txt"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"line 1000, byte offset 9995"):
        read_pieces(path, 3000)


@given(st.text(alphabet="ab \n", max_size=300), st.integers(4, 60))
def test_split_text_loses_nothing(text, size):
    parts = split_text(text, size)
    assert "".join(parts) == text
    assert all(len(part) <= size + size // 4 for part in parts)
    assert len(parts) <= 1 + 2 * len(text) // size


@given(st.text(alphabet="ab \t\n", max_size=60))
def test_squeeze_blank_lines_keeps_the_lines(text):
    squeezed = squeeze_blank_lines(text)
    assert "\n\n\n" not in squeezed
    assert not squeezed.startswith("\n")
    lines = [line for line in text.split("\n") if line.strip()]
    assert [line for line in squeezed.split("\n") if line.strip()] == lines


def test_json_lines_of_both_kinds(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [
        {"text": "plain text here", "id": 1},
        {"messages": [{"role": "user", "content": "hi"}], "text": "not this"},
        {"messages": None, "text": "text in a table with both"},
    ]
    path.write_text("\n\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    _, texts = load(path, 3, 64, pack=False)
    assert sorted(texts) == ["<user>hi</>", "plain text here", "text in a table with both"]


def test_json_array(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": f"record {n}"} for n in range(5)], indent=1))
    assert sorted(load(path, 5, 32, pack=False)[1]) == [f"record {n}" for n in range(5)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{not json", r"line 2: not JSON"),
        ('"a string"', r"line 2: a record is str, not an object"),
        ('{"prompt": "x", "answer": "y"}', r"line 2: neither .* \(fields: answer, prompt\)"),
        ('{"text": 7}', r"line 2: `text` is int, not a string"),
        ('{"messages": "hello"}', r"line 2: `messages` is no list"),
        ('{"messages": [{"content": "x"}]}', r"line 2: message 0 has no `role`"),
        ('{"messages": [{"role": "user"}]}', r"line 2: message 0 has no `content`"),
        ('{"text": "half \\ud83d of one"}', r"line 2: half a character, U\+D83D, at position 5"),
    ],
)
def test_records_that_cannot_be_used(tmp_path, line, reason):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=reason) as caught:
        load(path)
    assert caught.value.hint


def test_folder_of_files_of_all_kinds(tmp_path):
    from pyarrow import Table, parquet

    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("T" * 400)
    (tmp_path / "sub" / "b.jsonl").write_text(json.dumps({"text": "J" * 400}) + "\n")
    parquet.write_table(Table.from_pylist([{"text": "P" * 400, "n": 1}]), tmp_path / "c.parquet")
    (tmp_path / "README.md").write_text("about " * 100)
    (tmp_path / ".hidden.txt").write_text("hidden " * 100)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0")
    windows, texts = load(tmp_path, 30, 40)
    assert sorted(set("".join(texts))) == ["J", "P", "T"]
    assert windows.num_tokens == 1200
    assert dict(windows.sources[0].mix) == {"text": 400, "records": 400, "tables": 400}
    first = set("".join(load(tmp_path, 3, 40)[1]))
    assert first == {"J", "P", "T"}


def test_parquet_rows_of_conversations(tmp_path):
    from pyarrow import Table, parquet

    rows = [{"messages": [{"role": "user", "content": f"q{n}", "name": None}]} for n in range(10)]
    path = tmp_path / "a.parquet"
    parquet.write_table(Table.from_pylist(rows), path, row_group_size=3)
    _, texts = load(path, 10, 32, pack=False)
    assert sorted(texts) == [f"<user>q{n}</>" for n in range(10)]
    assert load(path, 10, 32, seed=1, pack=False)[1] != texts
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(b"PAR1 but not really")
    with pytest.raises(DataError, match=r"bad\.parquet: not a readable Parquet file"):
        load(bad)
    other = tmp_path / "other.parquet"
    parquet.write_table(Table.from_pylist([{"prompt": "x"}]), other)
    with pytest.raises(DataError, match=r"no column `text` or `messages` \(columns: prompt\)"):
        load(other)


def test_no_network_for_anything_local(tmp_path, blocked):
    from datasets import Dataset, DatasetDict

    rows = [{"text": f"row number {n}", "label": n} for n in range(20)]
    Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    splits = {"train": Dataset.from_list(rows[:12]), "test": Dataset.from_list(rows[12:])}
    DatasetDict(splits).save_to_disk(tmp_path / "splits")
    (tmp_path / "a.txt").write_text("a text file\n" * 10)
    (tmp_path / "empty").mkdir()

    assert sorted(load(tmp_path / "saved", 20, 32, pack=False)[1]) == sorted(
        row["text"] for row in rows
    )
    for split, count in (("calibration", 12), ("evaluation", 8)):
        texts = load(tmp_path / "splits", 20, 32, pack=False, split=split)[1]
        assert len(texts) == count
    assert load(tmp_path / "a.txt")[0].num_tokens == 120
    assert load("builtin", 2, 64)[0].num_tokens == 128
    with pytest.raises(DataError, match="no data in this folder"):
        load(tmp_path / "empty")
    assert blocked == []


@pytest.mark.parametrize("name", ["./modle", "../data/calib", "/no/such", "~/nothing", "calib.txt"])
def test_mistyped_path_is_no_hub_name(name, blocked):
    start = time.monotonic()
    with pytest.raises(DataError, match="no such file or folder") as caught:
        load(name)
    assert time.monotonic() - start < 2
    assert name in caught.value.message
    assert "builtin" in (caught.value.hint or "")
    assert blocked == []


def test_what_looks_like_a_path():
    for name in ("a.jsonl", "data/b.parquet", "./x", "/x", "~/x", "..\\x"):
        assert looks_like_path(name), name
    for name in ("wikitext", "wikitext:wikitext-2-raw-v1:test", "owner/name", "owner/name-v1.5"):
        assert not looks_like_path(name), name
    with pytest.raises(UsageError, match="names no data set"):
        load("https://example.org/text")


def test_unreadable_file(tmp_path):
    path = tmp_path / "link.txt"
    path.symlink_to(path)
    with pytest.raises(DataError, match=r"link\.txt"):
        load(path)
