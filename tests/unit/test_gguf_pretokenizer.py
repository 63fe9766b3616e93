"""The table of pre-tokenizers: each row in both directions, against the regular expressions."""

import json

import pytest
import regex
import tokenizers
from tokenizers import Regex, pre_tokenizers

from quantkit.errors import ModelError
from quantkit.formats.gguf import pretokenizer
from quantkit.formats.gguf.pretokenizer import GPT2, LLAMA3, QWEN2, TABLE, PreTokenizer
from tests.helpers.odd_texts import odd_texts

ROWS = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.names[0])


def cut(row: PreTokenizer, text: str) -> list[str]:
    """Words of a text by the row's expressions, one after the other, as llama.cpp cuts."""
    pieces = [text]
    for step in row.steps:
        found = []
        for piece in pieces:
            at = 0
            for match in regex.finditer(step, piece):
                found += [piece[at : match.start()], match.group()]
                at = match.end()
            found.append(piece[at:])
        pieces = [piece for piece in found if piece]
    return pieces


@ROWS
def test_tokenizer_json_cuts_as_the_expressions_do(row: PreTokenizer) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    document = json.loads(backend.to_str())
    document["pre_tokenizer"] = pretokenizer.to_json(row)
    backend = tokenizers.Tokenizer.from_str(json.dumps(document))
    table = {token: byte for byte, token in _byte_alphabet().items()}
    for text in odd_texts():
        words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        plain = [bytes(table[c] for c in word).decode(errors="replace") for word in words]
        assert plain == cut(row, text), repr(text)


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's printable character for each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in kept}
    others = [byte for byte in range(256) if byte not in table]
    return table | {byte: chr(256 + i) for i, byte in enumerate(others)}


@ROWS
def test_structure_gives_the_name_back(row: PreTokenizer) -> None:
    document = {
        "pre_tokenizer": pretokenizer.to_json(row),
        "normalizer": row.normalizer and {"type": row.normalizer},
        "model": {"type": "BPE", "ignore_merges": row.ignore_merges},
    }
    assert pretokenizer.by_structure(document) is row
    for name in row.names:
        assert pretokenizer.by_name(name, "m.gguf") is row


def test_names_are_unique() -> None:
    names = [name for row in TABLE for name in row.names]
    assert len(names) == len(set(names))


def test_rows_are_the_published_expressions() -> None:
    """As they stand in the tokenizer.json files of Llama 3 and Qwen 2."""
    tail = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    head = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    assert head + r"\p{N}{1,3}" + tail == LLAMA3
    assert head + r"\p{N}" + tail == QWEN2


def test_byte_level_alone_is_gpt2() -> None:
    text = "I'll  pay 123 €\n\n ok"
    words = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(GPT2), "isolated"),
            pre_tokenizers.ByteLevel(False, use_regex=False),
        ]
    )
    assert [w for w, _ in words] == [w for w, _ in split.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    "node",
    [
        None,
        {"type": "Whitespace"},
        {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True},
        {"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated", "invert": False},
        {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": LLAMA3},
                    "behavior": "MergedWithPrevious",
                    "invert": False,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        },
        {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": r"\w+"},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        },
    ],
)
def test_other_structures_have_no_name(node: object) -> None:
    assert pretokenizer.by_structure({"pre_tokenizer": node, "model": {}}) is None


def test_unknown_name_is_refused() -> None:
    with pytest.raises(ModelError, match=r"m\.gguf: tokenizer\.ggml\.pre 'llama-bpe-2'"):
        pretokenizer.by_name("llama-bpe-2", "m.gguf")


def test_the_normalizer_chooses_between_rows_of_one_cut() -> None:
    row = next(row for row in TABLE if row.names == ("qwen2",))
    document = {"pre_tokenizer": pretokenizer.to_json(row), "model": {}}
    for normalizer, name in (
        ({"type": "NFC"}, "qwen2"),
        (None, "deepseek-r1-qwen"),
        ({"type": "Sequence", "normalizers": []}, "deepseek-r1-qwen"),
    ):
        found = pretokenizer.by_structure({**document, "normalizer": normalizer})
        assert found is not None
        assert found.names[0] == name
