"""Streaming text: no half characters, no part of a stop string, and no dependence on the cuts."""

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders, models

from quantkit.runtime.text.detokenize import Detokenizer, special_ids
from quantkit.runtime.text.stops import StopMatcher
from tests.helpers.fake_backend import EOS, byte_tokenizer
from tests.helpers.tiny import tiny_tokenizer

BROKEN = "\ufffd"
BYTES = byte_tokenizer().backend
PIECES = tiny_tokenizer()


def _fallback_tokenizer() -> tokenizers.Tokenizer:
    """Sentencepiece style: words with a mark for the space, and byte tokens for the rest."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    for piece in ("▁", "▁the", "▁cat", "s", "a", "b", "▁é"):
        vocab[piece] = len(vocab)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return backend


FALLBACK = _fallback_tokenizer()


def _stream(
    backend: tokenizers.Tokenizer, ids: list[int], prompt: list[int] | None = None
) -> list[str]:
    detokenizer = Detokenizer(backend, special_ids(backend), prompt or [])
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


@pytest.mark.parametrize("text", ["é", "😀", "👨‍👩‍👧‍👦", "한국", "a é 漢字 b", "plain"])
def test_characters_come_whole(text: str) -> None:
    deltas = _stream(BYTES, list(text.encode()))
    assert "".join(deltas) == text
    assert BROKEN not in "".join(deltas)
    for delta in deltas:
        delta.encode("utf-8")  # a lone surrogate would raise


@given(st.text())
def test_any_text(text: str) -> None:
    for backend in (BYTES, PIECES):
        ids = backend.encode(text, add_special_tokens=False).ids
        want = backend.decode(ids, skip_special_tokens=True)
        deltas = _stream(backend, ids)
        assert "".join(deltas).rstrip(BROKEN) == want.rstrip(BROKEN)


@given(st.lists(st.integers(0, EOS + 3), max_size=40))
def test_any_bytes(ids: list[int]) -> None:
    """Invalid bytes are shown as such, special and unknown tokens as nothing; nothing is lost."""
    got = "".join(_stream(BYTES, ids))
    want = bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")
    assert got.rstrip(BROKEN) == want.rstrip(BROKEN)


@given(st.lists(st.sampled_from([256, 257, 258, 259, 260, 261, 262, *"é€".encode()]), max_size=30))
def test_byte_fallback_never_raises_or_loses_words(ids: list[int]) -> None:
    got = "".join(_stream(FALLBACK, ids, prompt=[257]))
    if all(i >= 256 for i in ids):
        assert got == FALLBACK.decode([257, *ids])[len("the") :]
    words = "".join(char for char in got if char in "thecatsb")
    assert words == FALLBACK.decode([i for i in ids if i >= 256]).replace("é", "").replace(" ", "")


def test_the_first_token_keeps_its_space_behind_a_prompt() -> None:
    assert "".join(_stream(FALLBACK, [258, 259], prompt=[257])) == " cats"
    assert "".join(_stream(FALLBACK, [258, 259])) == "cats"


def test_a_prompt_that_is_cut_inside_a_character() -> None:
    prompt = list("😀😀😀".encode())[:-1]
    assert "".join(_stream(BYTES, list(b"ok"), prompt=prompt)) == "ok"
    prompt = list("€€€".encode())  # the context taken from it starts inside a character
    assert "".join(_stream(FALLBACK, list("€".encode()), prompt=prompt)) == "€"


def test_text_that_is_out_stays_when_invalid_bytes_follow() -> None:
    """The decoder now takes all bytes for invalid; only those that are new are shown so."""
    ids = [*"é".encode(), 0xE2, 258]
    assert FALLBACK.decode(ids) == f"{BROKEN * 3} cat"
    assert _stream(FALLBACK, ids) == ["", "é", "", f"{BROKEN} cat", ""]


def test_an_unfinished_character_is_dropped_at_the_end() -> None:
    assert "".join(_stream(BYTES, list("a😀".encode())[:-1])) == "a"
    backend = tokenizers.Tokenizer(models.BPE(vocab={"Ġð": 0, "a": 1}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    assert _stream(backend, [1, 0]) == ["a", "", " "]  # one token: a space and a first byte


def test_work_for_a_token_does_not_grow() -> None:
    detokenizer = Detokenizer(BYTES, special_ids(BYTES))
    for _ in range(1000):  # bytes that never become a character
        detokenizer.push(0x80)
    assert len(detokenizer._context) + len(detokenizer._new) <= 10


def _cut(text: str, stops: list[str]) -> str:
    """The slow way: the first character at which any stop string is complete ends the text."""
    for end in range(1, len(text) + 1):
        starts = [end - len(s) for s in stops if text[:end].endswith(s)]
        if starts:
            return text[: min(starts)]
    return text


def _match(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    out = ""
    for piece in pieces:
        delta, found = matcher.push(piece)
        out += delta
        if found is not None:
            return out, found
    return out + matcher.flush(), None


@pytest.mark.parametrize(
    ("stops", "text", "found"),
    [
        (["DEFG"], "ABC", "DEFG"),
        (["CD"], "AB", "CD"),
        (["G"], "ABCDEF", "G"),
        (["DEX", "EF"], "ABCD", "EF"),
        (["DEFX"], "ABCDEFG", None),
        (["CDE", "DE"], "AB", "CDE"),
        (["ABCDEFGH"], "ABCDEFG", None),
        ([], "ABCDEFG", None),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_stops(stops: list[str], text: str, found: str | None, size: int) -> None:
    pieces = ["ABCDEFG"[i : i + size] for i in range(0, 7, size)]
    assert _match(stops, pieces) == (text, found)


@example(["aab"], ["aaab"])
@example(["abab", "b"], ["a", "ab", "ab"])
@given(
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=4),
    st.lists(st.text("ab", max_size=4), max_size=12),
)
def test_stops_wherever_the_text_is_cut(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    got, found = _match(stops, pieces)
    assert got == _cut(text, stops)
    assert (found is not None) == any(s in text for s in stops)


def test_only_what_may_become_a_stop_is_held_back() -> None:
    matcher = StopMatcher(["<end>"])
    assert matcher.push("a<en") == ("a", None)
    assert matcher.push("x<") == ("<enx", None)
    assert matcher.push("end") == ("", None)
    assert matcher.flush() == "<end"


def test_a_long_stop_string_is_cheap() -> None:
    matcher = StopMatcher(["a" * 10_000])
    for _ in range(9_999):
        assert matcher.push("a") == ("", None)
    assert matcher.push("b") == ("a" * 9_999 + "b", None)
