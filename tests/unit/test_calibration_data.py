"""Windows: packing, documents, shares, shortfall. Files and sources are tested next door."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from quantkit.calibration.data import load_windows
from quantkit.calibration.windows import document_positions, spread_evenly
from quantkit.errors import DataError, UsageError

BOS = 256


class ByteTokenizer:
    """One token per byte, and a first token if asked for; a template that shows its marks."""

    def __init__(self, bos: bool = False, has_chat_template: bool = True) -> None:
        self.bos = bos
        self.has_chat_template = has_chat_template

    def encode(self, text: str) -> list[int]:
        return [BOS] * self.bos + list(text.encode())

    def encode_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        if messages[0]["role"] == "refused":
            raise DataError("chat template: roles must alternate", hint="begin with user")
        return self.encode("".join(f"<{m['role']}>{m['content']}</>" for m in messages))


def no_warning(message: str) -> None:
    pytest.fail(f"unexpected warning: {message}")


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def text_of(windows, row: int) -> str:
    ids = windows.ids[row][windows.docs[row] >= 0]
    return bytes(ids.tolist()).decode()


def test_a_short_text_is_packed_token_by_token(tmp_path):
    text = "".join(f"line {n} of a text\n" for n in range(20))
    windows = load_windows(
        ByteTokenizer(), [write(tmp_path / "a.txt", text)], 5, 64, warn=no_warning
    )
    assert windows.ids.dtype == windows.docs.dtype == torch.int64
    assert windows.ids.shape == (5, 64)
    assert windows.ids.flatten().tolist() == list(text.encode())[:320]
    assert (windows.docs == 0).all()
    assert windows.num_tokens == 320
    assert windows.positions().tolist() == [list(range(64))] * 5


def test_short_file_says_what_was_asked_and_used(tmp_path):
    lines = [f"eight words are in line number {n}" for n in range(8)]
    for place in (0, 2, 2, 3, 5, 7, 9, 9, 12, 14, 16, 19):
        lines.insert(place, "   " if place % 2 else "")
    assert len(lines) == 20
    path = write(tmp_path / "a.txt", "\n".join(lines))
    said: list[str] = []
    windows = load_windows(ByteTokenizer(), [path], 128, 64, warn=said.append)
    used = windows.num_tokens
    assert 8 * len(lines[1]) <= used < 8 * 64
    (warning,) = said
    assert warning.count("\n") == 0
    for part in ("128 windows", "64 tokens", "8192 tokens", f"{windows.num_windows} windows"):
        assert part in warning
    assert f"{used} tokens" in warning
    assert path in warning
    assert windows.shortfall == warning
    summary = windows.summary()
    assert (summary["samples_asked"], summary["tokens_asked"]) == (128, 8192)
    assert (summary["samples_used"], summary["tokens_used"]) == (windows.num_windows, used)
    json.dumps(summary)


def test_file_with_exactly_enough_is_silent(tmp_path):
    text = "".join(f"{n:03d}{'x' * 60}\n" for n in range(128))
    windows = load_windows(
        ByteTokenizer(), [write(tmp_path / "a.txt", text)], 128, 64, warn=no_warning
    )
    assert windows.num_windows == 128
    assert windows.num_tokens == 128 * 64
    assert windows.shortfall is None
    # Every line once: all parts of the file were used.
    rows = sorted(bytes(row.tolist()).decode() for row in windows.ids)
    assert rows == [f"{n:03d}{'x' * 60}\n" for n in range(128)]


def test_blank_lines_are_no_samples(tmp_path):
    lines = ["first line", "", "   ", "\t", "second line", "", "", "third line"]
    path = write(tmp_path / "a.txt", "\n".join(lines))
    said: list[str] = []
    windows = load_windows(ByteTokenizer(), [path], 8, 32, pack=False, warn=said.append)
    assert sorted(text_of(windows, row) for row in range(windows.num_windows)) == [
        "first line",
        "second line",
        "third line",
    ]
    assert len(said) == 1
    assert "asked for 8 windows" in said[0]
    packed = load_windows(ByteTokenizer(), [path], 1, 64, warn=lambda _: None)
    assert text_of(packed, 0) == "first line\n\nsecond line\n\nthird line"


def test_unpacked_padding_is_marked_and_nothing_else(tmp_path):
    lines = [f"{n:02d}" + "y" * (n * n) for n in range(12)]
    path = write(tmp_path / "a.txt", "\n".join(lines))
    windows = load_windows(ByteTokenizer(bos=True), [path], 12, 40, pack=False, warn=no_warning)
    assert windows.num_windows == 12
    seen = []
    for ids, docs, positions in zip(windows.ids, windows.docs, windows.positions(), strict=True):
        count = int((docs == 0).sum())
        assert docs.tolist() == [0] * count + [-1] * (40 - count)
        assert ids[count:].eq(0).all()
        assert positions.tolist() == list(range(count)) + [0] * (40 - count)
        seen.append(ids[:count].tolist())
    want = [[BOS, *line.encode()][:40] for line in lines]
    assert sorted(seen) == sorted(want)
    assert windows.num_tokens == sum(map(len, want))


def test_packed_documents_follow_each_other_and_restart(tmp_path):
    texts = [f"document {n} " + "z" * (7 * n % 90) for n in range(60)]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps({"text": t}) + "\n" for t in texts))
    windows = load_windows(ByteTokenizer(bos=True), [path], 20, 48, warn=no_warning)
    pieces: list[list[int]] = []
    for ids, docs, positions in zip(
        windows.ids.tolist(), windows.docs.tolist(), windows.positions().tolist(), strict=True
    ):
        assert docs[0] == 0
        for number in range(max(docs) + 1):
            place = [at for at, doc in enumerate(docs) if doc == number]
            assert place == list(range(place[0], place[-1] + 1))
            assert [positions[at] for at in place] == list(range(len(place)))
            assert ids[place[0]] == BOS
            pieces.append([ids[at] for at in place[1:]])
    # A document that was cut goes on in the next window: joined, the pieces are whole texts.
    rest = bytes(token for piece in pieces for token in piece).decode()
    used = []
    while (text := next((t for t in texts if rest.startswith(t)), None)) is not None:
        used.append(text)
        rest = rest[len(text) :]
    assert len(used) == len(set(used)) == windows.sources[0].num_documents - 1
    assert any(text.startswith(rest) for text in texts if text not in used)


def test_positions_restart_per_document():
    docs = torch.tensor([[0, 0, 1, 1, 1, -1], [0, 1, 2, 2, 2, 2], [-1, -1, -1, -1, -1, -1]])
    assert document_positions(docs).tolist() == [
        [0, 1, 0, 1, 2, 0],
        [0, 0, 0, 1, 2, 3],
        [0, 0, 0, 0, 0, 0],
    ]


def test_seed_decides_and_repeats(tmp_path):
    text = "".join(f"paragraph {n} {'word ' * 20}\n\n" for n in range(400))
    path = write(tmp_path / "a.txt", text)

    def load(seed: int, **options: Any):
        return load_windows(ByteTokenizer(), [path], 6, 64, seed, warn=no_warning, **options)

    first, again, other = load(0), load(0), load(1)
    assert first.digest == again.digest
    assert torch.equal(first.ids, again.ids)
    assert first.sources == again.sources
    assert first.digest != other.digest
    assert load(0, pack=False).digest != load(1, pack=False).digest
    state = torch.get_rng_state()
    load(0)
    assert torch.equal(state, torch.get_rng_state())


def test_choice_is_spread_over_a_long_file(tmp_path):
    text = "".join(f"{n:06d} {'filler ' * 8}\n" for n in range(20_000))
    path = write(tmp_path / "a.txt", text)
    windows = load_windows(ByteTokenizer(), [path], 400, 64, warn=no_warning)
    starts = [text.index(text_of(windows, row)) / len(text) for row in range(400)]
    quarters = Counter(int(4 * start) for start in starts)
    assert min(quarters[quarter] for quarter in range(4)) >= 50


def test_several_sources_have_equal_shares(tmp_path):
    names = [write(tmp_path / f"{c}.txt", f"{c * 30}\n" * 500) for c in "abc"]
    windows = load_windows(ByteTokenizer(), names, 10, 32, warn=no_warning)
    owners = ["abc"["abc".index(chr(int(row[0])))] for row in windows.ids]
    assert Counter(owners) == {"a": 4, "b": 3, "c": 3}
    assert {*owners[:4]} == {*owners[-4:]} == {"a", "b", "c"}
    assert [report.name for report in windows.sources] == names
    assert [report.tokens_asked for report in windows.sources] == [128, 96, 96]
    assert [report.tokens_used for report in windows.sources] == [128, 96, 96]
    assert len({report.digest for report in windows.sources}) == 3


def test_other_sources_fill_in_and_it_is_said(tmp_path):
    short = write(tmp_path / "short.txt", "just a few words\n")
    long = write(tmp_path / "long.txt", "many words and more of them\n" * 100)
    said: list[str] = []
    windows = load_windows(ByteTokenizer(), [short, long], 8, 32, warn=said.append)
    assert windows.num_tokens == 8 * 32
    assert said == [f"calibration data: {short} gave 17 of 128 tokens; the other sources filled in"]
    assert windows.sources[0].tokens_used == 17
    assert windows.sources[1].tokens_used == 8 * 32 - 17


def test_last_window_may_be_partly_filled_and_comes_last(tmp_path):
    names = [
        write(tmp_path / "a.txt", "a" * 70 + "\n"),
        write(tmp_path / "b.txt", "b" * 100 + "\n"),
    ]
    windows = load_windows(ByteTokenizer(), names, 20, 32, warn=lambda _: None)
    assert windows.num_tokens == 172
    assert windows.num_windows == 6
    assert (windows.docs[:5] >= 0).all()
    assert int((windows.docs[5] >= 0).sum()) == 12


def test_tiny_documents_are_dropped_and_counted(tmp_path):
    rows = [{"text": t} for t in ("a", "", "  \n ", "long enough", "b")] + [{"text": None}]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    windows = load_windows(ByteTokenizer(), [path], 2, 8, warn=lambda _: None)
    (report,) = windows.sources
    assert (report.num_documents, report.num_dropped) == (1, 5)


def test_no_usable_text(tmp_path):
    path = write(tmp_path / "a.txt", "\n  \n\n")
    with pytest.raises(DataError, match=r"a\.txt: no usable text"):
        load_windows(ByteTokenizer(), [path], 4, 8, warn=no_warning)


def test_arguments_that_cannot_be_meant(tmp_path):
    path = write(tmp_path / "a.txt", "text of a file")
    for datasets, num_samples, seq_len in (
        ([], 1, 8),
        ([path, path], 1, 8),
        ([path], 0, 8),
        ([path], 1, 1),
    ):
        with pytest.raises(UsageError):
            load_windows(ByteTokenizer(), datasets, num_samples, seq_len, warn=no_warning)


def conversation_file(path: Path, *, role: str = "user") -> str:
    rows = [
        {
            "messages": [
                {"role": role, "content": f"question {n}"},
                {"role": "assistant", "content": "yes"},
            ]
        }
        for n in range(9)
    ]
    return write(path, "\n".join(map(json.dumps, rows)))


def test_conversations_use_the_chat_template(tmp_path):
    path = conversation_file(tmp_path / "a.jsonl")
    windows = load_windows(ByteTokenizer(), [path], 9, 64, pack=False, warn=no_warning)
    texts = sorted(text_of(windows, row) for row in range(9))
    assert texts == [f"<user>question {n}</><assistant>yes</>" for n in range(9)]


def test_conversations_without_a_template_are_plain_and_it_is_said(tmp_path):
    path = conversation_file(tmp_path / "a.jsonl")
    said: list[str] = []
    tokenizer = ByteTokenizer(has_chat_template=False)
    windows = load_windows(tokenizer, [path], 9, 64, pack=False, warn=said.append)
    assert text_of(windows, 0).startswith("User: question ")
    assert text_of(windows, 0).endswith("\nAssistant: yes\n")
    assert len(said) == 1
    assert "no chat template" in said[0]


def test_refusal_of_the_template_names_file_and_line(tmp_path):
    path = conversation_file(tmp_path / "a.jsonl", role="refused")
    with pytest.raises(DataError, match=r"a\.jsonl, line \d+: chat template: roles") as caught:
        load_windows(ByteTokenizer(), [path], 2, 64, warn=no_warning)
    assert caught.value.hint == "begin with user"


def test_spread_evenly_keeps_the_mix_in_every_part():
    owners = [0] * 60 + [1] * 30 + [2] * 10
    order = spread_evenly(owners)
    assert sorted(order) == list(range(100))
    for start in range(0, 100, 20):
        part = Counter(owners[index] for index in order[start : start + 20])
        assert abs(part[0] - 12) <= 1
        assert abs(part[1] - 6) <= 1
        assert abs(part[2] - 2) <= 1
