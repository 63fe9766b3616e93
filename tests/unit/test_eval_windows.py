"""Windows: every length gives the right ones, and no position is scored twice or lost."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.core.tokenizer import Tokenizer
from quantkit.errors import DataError, ModelError, QuantkitError, UsageError
from quantkit.eval.subject import Subject
from quantkit.eval.texts import load_windows
from quantkit.eval.windows import Score, batches, check_sizes, cut_windows, ids_digest, offsets
from tests.helpers.fake_eval import VOCAB, fake_decoder, fake_subject, word_tokenizer, words
from tests.helpers.tiny import TEMPLATE, tiny_tokenizer

RULES: list[Score] = ["second-half", "all"]


@pytest.mark.parametrize("score", RULES)
@given(length=st.integers(0, 70), seq_len=st.integers(2, 16))
def test_windows_are_the_text(score: Score, length: int, seq_len: int) -> None:
    windows = list(cut_windows("text", range(length), seq_len, score))
    joined = [token for window in windows for token in window.ids.tolist()]
    left_out = 1 if length % seq_len == 1 else 0
    assert joined == list(range(length - left_out))
    assert [window.start for window in windows] == list(range(0, len(joined), seq_len))
    scored = [i for w in windows for i in w.ids[w.first :].tolist()]
    expected = []
    for begin in range(0, len(joined), seq_len):
        size = min(seq_len, len(joined) - begin)
        first = 1 if score == "all" else max(1, size // 2)
        expected += list(range(begin + first, begin + size))
    assert scored == expected
    assert offsets(windows)[-1] == len(scored)


@given(lengths=st.lists(st.integers(2, 5), min_size=1), batch_size=st.integers(1, 4))
def test_batches_hold_each_window_once_and_one_length(lengths: list[int], batch_size: int) -> None:
    windows = [next(cut_windows("t", range(length), 8, "all")) for length in lengths]
    found = list(batches(windows, batch_size))
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    assert all(len({lengths[index] for index in batch}) == 1 for batch in found)
    assert max(map(len, found)) <= batch_size


def test_digest_sees_tokens_and_cuts() -> None:
    def digest(ids: list[int], seq_len: int) -> str:
        return ids_digest(cut_windows("t", ids, seq_len, "all"))

    found = {digest([1, 2, 3, 4], 4), digest([1, 2, 3, 4], 2), digest([1, 2, 3, 5], 4)}
    assert len(found) == 3


@pytest.mark.parametrize(
    ("seq_len", "limit", "score", "batch_size", "named"),
    [
        (1, None, "all", None, "sequence length is 1"),
        (8, 0, "all", None, "limit is 0"),
        (8, None, "half", None, "score is 'half'"),
        (8, None, "all", 0, "batch size is 0"),
    ],
)
def test_sizes_that_cannot_be_meant(
    seq_len: int, limit: int | None, score: str, batch_size: int | None, named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        check_sizes(seq_len, limit, score, batch_size)


def load(
    paths: list[Path | str], *readers: Subject, limit: int | None = None
) -> tuple[list[int], list[str]]:
    windows, _ = load_windows([str(p) for p in paths], readers or [fake_subject()], 8, limit, "all")
    return [window.ids.numel() for window in windows], [window.source for window in windows]


def test_a_text_file_is_one_stream(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(words(10) + "\r\n\r\n" + words(8, seed=2))
    assert load([path]) == ([8, 8, 2], [str(path)] * 3)
    assert load([path], limit=2)[0] == [8, 8]


def test_records_are_documents_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    records = [{"text": words(count)} for count in (3, 1, 9, 12)]
    path.write_text("\n\n".join(json.dumps(record) for record in records))
    sizes, sources = load([path])
    assert sizes == [3, 8, 8, 4]  # the last token of 9 stands alone, and nothing predicts it
    assert sources[0] == f"{path}, line 1"
    assert sources[1] == f"{path}, line 5"
    windows, reports = load_windows([str(path)], [fake_subject()], 8, None, "all")
    assert (reports[0].num_documents, reports[0].num_dropped) == (3, 1)
    assert reports[0].num_tokens == sum(window.ids.numel() for window in windows)


def test_limit_does_not_read_on(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"text": words(20)}) + "\nno JSON\n")
    other = tmp_path / "other.txt"
    other.write_bytes(b"\xff")
    assert load([path, other], limit=3)[0] == [8, 8, 4]
    with pytest.raises(DataError, match="line 2: not JSON"):
        load([path], limit=4)


def test_conversations_use_the_template(tmp_path: Path) -> None:
    tokenizer = Tokenizer(tiny_tokenizer(), settings={}, template=TEMPLATE)
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "def f(x):"}]}))
    windows, _ = load_windows(
        [str(path)], [Subject("m", tokenizer, lambda _: fake_decoder())], 512, None, "all"
    )
    assert tokenizer.decode(windows[0].ids.tolist()) == "<|im_start|>user\ndef f(x):<|im_end|>\n"


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_to_score(tmp_path: Path, count: int) -> None:
    path = tmp_path / "short.txt"
    path.write_text(words(count))
    with pytest.raises(DataError, match=rf"short.txt: too short .* has {count} token"):
        load([path])


def test_bad_texts_are_named(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"w1 w2\nw3 caf\xe9 w4")
    (tmp_path / "half.jsonl").write_text('{"text": "w1 \\ud83d w2"}')
    (tmp_path / "other.jsonl").write_text('{"body": "w1 w2"}')
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    cases = {
        "latin.txt": "latin.txt, line 2, byte offset 12",
        "half.jsonl": "half.jsonl, line 1: half a surrogate pair at character 3",
        "other.jsonl": "other.jsonl, line 1: neither `text` nor `messages`",
        "table.parquet": "parquet files are not read as text",
        "missing.txt": "missing.txt: no such file",
        "": "is a folder",
    }
    for name, message in cases.items():
        with pytest.raises(DataError, match=message) as caught:
            load([tmp_path / name])
        assert "\n" not in caught.value.message
    with pytest.raises(UsageError, match="given twice"):
        load(["builtin", "builtin"])
    with pytest.raises(UsageError, match="no evaluation text"):
        load([])


def test_builtin_is_there() -> None:
    subject = Subject(
        "m", Tokenizer(tiny_tokenizer(), settings={}, template=None), lambda _: fake_decoder()
    )
    windows, reports = load_windows(["builtin"], [subject], 128, 20, "all")
    assert len(windows) == 20
    assert reports[0].num_tokens == 20 * 128


def test_tokenizers_that_disagree(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("w1 w2 w3 w4")
    swapped = {f"w{number}": number for number in range(VOCAB)} | {"w3": 4, "w4": 3}
    other = Subject("other", word_tokenizer(swapped), lambda _: fake_decoder())
    with pytest.raises(ModelError) as caught:
        load([path], fake_subject("mine"), other)
    assert caught.value.message == (
        f"the models read different tokens: token 2 of {path} is 3 'w3' for mine, 4 'w3' for other"
    )
    assert isinstance(caught.value, QuantkitError)
