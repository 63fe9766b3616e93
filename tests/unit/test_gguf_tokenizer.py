"""Tokenizers through GGUF and back: the same ids, special tokens, template and settings."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from gguf.constants import TokenType

from quantkit.core.tokenizer import Tokenizer
from quantkit.errors import ModelError
from quantkit.formats.gguf.pretokenizer import TABLE
from quantkit.formats.gguf.spm import merges_from_scores, missing_merges, scores_from_merges
from tests.helpers.gguf_tokenizers import (
    SPECIAL,
    byte_level_json,
    files,
    ids_of,
    sentencepiece_json,
    sentencepiece_model,
    through_gguf,
    with_start_token,
)
from tests.helpers.odd_texts import odd_texts

TEXTS = odd_texts(220, special=SPECIAL)
CUTS = [row.names[0] for row in TABLE]


def edited(document: str, **changes: Any) -> str:
    return json.dumps({**json.loads(document), **changes})


@pytest.mark.parametrize("pre", CUTS)
def test_byte_level_ids_are_equal(pre: str, tmp_path: Path) -> None:
    document = byte_level_json(pre)
    checkpoint, warnings = through_gguf(files(document), tmp_path)
    assert checkpoint.metadata["tokenizer.ggml.model"] == "gpt2"
    assert checkpoint.metadata["tokenizer.ggml.pre"] == pre
    found = checkpoint.companion_reader()["tokenizer.json"]
    assert ids_of(found, TEXTS) == ids_of(document, TEXTS)
    assert not warnings
    backend = Tokenizer.from_checkpoint(checkpoint).backend
    for text in TEXTS:
        ids = backend.encode(text).ids
        assert backend.decode(ids) == tokenizers.Tokenizer.from_str(document).decode(ids)


def test_transformers_gives_the_same_ids(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    checkpoint, _ = through_gguf(files(with_start_token(byte_level_json("smollm"))), tmp_path)
    (tmp_path / "tok").mkdir()
    for name, data in checkpoint.companion_reader().items():
        (tmp_path / "tok" / name).write_bytes(data)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "tok")
    expected = ids_of(with_start_token(byte_level_json("smollm")), TEXTS)
    assert [theirs(text).input_ids for text in TEXTS] == expected


@pytest.mark.parametrize("scheme", ["prepend", "always", "never"])
def test_sentencepiece_ids_are_equal(scheme: str, tmp_path: Path) -> None:
    document = sentencepiece_json(scheme=scheme)
    companions = files(with_start_token(document), unk_token="<unk>")
    checkpoint, warnings = through_gguf(companions, tmp_path)
    assert len(warnings) == (scheme == "always")
    assert checkpoint.metadata["tokenizer.ggml.model"] == "llama"
    assert checkpoint.metadata["tokenizer.ggml.add_space_prefix"] is (scheme != "never")
    kinds = checkpoint.metadata["tokenizer.ggml.token_type"]
    assert kinds[:3] == [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    assert kinds.count(TokenType.BYTE) == 256
    found = checkpoint.companion_reader()["tokenizer.json"]
    texts = [*TEXTS, " leading", "trailing ", "<s>after", "a</s> b"]
    if scheme == "always":  # warned about above
        texts = [text for text in texts if not text.startswith(" ") and "> " not in text]
    assert ids_of(found, texts) == ids_of(companions["tokenizer.json"], texts)
    ours = Tokenizer.from_checkpoint(checkpoint)
    for text in ("plain words", "größe 🙂", "x  y"):
        assert ours.decode(ours.encode(text), skip_special=True) == text


def test_sentencepiece_itself_agrees(tmp_path: Path) -> None:
    import sentencepiece

    checkpoint, _ = through_gguf(files(sentencepiece_json(), unk_token="<unk>"), tmp_path)
    found = checkpoint.companion_reader()["tokenizer.json"]
    processor = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model())
    texts = [text for text in odd_texts(300) if not text.startswith(" ") and "\0" not in text]
    assert ids_of(found, texts) == [processor.encode(text) for text in texts]


def test_a_bare_sentencepiece_model_is_enough(tmp_path: Path) -> None:
    """C33: no tokenizer.json, only tokenizer.model."""
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}
    companions = {
        "tokenizer.model": sentencepiece_model(),
        "tokenizer_config.json": json.dumps(settings).encode(),
        "config.json": b'{"model_type": "llama"}',
    }
    checkpoint, warnings = through_gguf(companions, tmp_path)
    assert all("puts no space" in line or line.startswith("config.json") for line in warnings)
    found = checkpoint.companion_reader()["tokenizer.json"]
    texts = [text for text in TEXTS if not text.startswith(" ")]
    assert ids_of(found, texts, special=False) == ids_of(sentencepiece_json(), texts)


def test_scores_and_merges_are_inverse() -> None:
    document = json.loads(sentencepiece_json())
    merges = [tuple(pair) for pair in document["model"]["merges"]]
    ids = document["model"]["vocab"]
    scores = scores_from_merges(merges)
    assert merges_from_scores(ids, scores) == merges
    assert missing_merges(ids, merges, scores) == 0
    assert missing_merges(ids, merges[1:], scores) == 1


def test_missing_merges_and_the_first_scheme_are_warned_about(tmp_path: Path) -> None:
    document = json.loads(sentencepiece_json(scheme="first"))
    document["model"]["merges"] = document["model"]["merges"][:-5]
    companions = files(json.dumps(document), unk_token="<unk>")
    _, warnings = through_gguf(companions, tmp_path)
    assert any("5 pairs" in line for line in warnings)
    assert any("no space after a special token" in line for line in warnings)


def test_token_kinds_follow_the_flags(tmp_path: Path) -> None:
    """C31: special tokens are control tokens, added ones that are not special are user defined."""
    backend = tokenizers.Tokenizer.from_str(byte_level_json("smollm", 598))
    backend.add_tokens(["<think>", "</think>"])
    document = backend.to_str()
    checkpoint, _ = through_gguf(files(document), tmp_path)
    kinds = dict(
        zip(
            checkpoint.metadata["tokenizer.ggml.tokens"],
            checkpoint.metadata["tokenizer.ggml.token_type"],
            strict=True,
        )
    )
    assert kinds["<|im_start|>"] == kinds["<s>"] == TokenType.CONTROL
    assert kinds["<think>"] == kinds["</think>"] == TokenType.USER_DEFINED
    assert kinds["a"] == TokenType.NORMAL
    texts = ["<|im_start|>user\n<think>hm</think>ok<|im_end|>", "x<think>y"]
    found = checkpoint.companion_reader()["tokenizer.json"]
    assert ids_of(found, texts) == ids_of(document, texts)
    flags = {t["content"]: t["special"] for t in json.loads(found)["added_tokens"]}
    assert flags["<think>"] is False
    assert flags["<|im_start|>"] is True


def test_rows_without_tokens_get_fillers(tmp_path: Path) -> None:
    """C30: 590 tokens for 600 rows; ids unchanged, and the fillers are gone after reading."""
    document = byte_level_json("smollm", 590)
    checkpoint, _ = through_gguf(files(document), tmp_path)
    tokens = checkpoint.metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == checkpoint.metadata["llama.vocab_size"] == 600
    assert tokens[590:] == [f"[PAD{i}]" for i in range(590, 600)]
    assert set(checkpoint.metadata["tokenizer.ggml.token_type"][590:]) == {TokenType.UNUSED}
    found = checkpoint.companion_reader()["tokenizer.json"]
    assert json.loads(found)["model"]["vocab"] == json.loads(document)["model"]["vocab"]
    assert checkpoint.config["vocab_size"] == 600


def test_rows_count_and_not_the_config(tmp_path: Path) -> None:
    checkpoint, warnings = through_gguf(
        files(byte_level_json("smollm")), tmp_path, config={"vocab_size": 580}
    )
    assert any("580" in line and "600 rows" in line for line in warnings)
    assert checkpoint.config["vocab_size"] == 600


def test_tokens_without_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"590 rows, so 10 tokens have none: 590 \('"):
        through_gguf(files(byte_level_json("smollm")), tmp_path, rows=590)


def test_two_ids_for_a_token_are_refused(tmp_path: Path) -> None:
    document = json.loads(byte_level_json("smollm"))
    document["added_tokens"][0]["id"] = 7
    with pytest.raises(ModelError, match="<s>"):
        through_gguf(files(json.dumps(document)), tmp_path)


@pytest.mark.parametrize("template", [False, True])
@pytest.mark.parametrize("setting", [None, False, True])
def test_start_token_is_added_once_or_never(
    template: bool, setting: bool | None, tmp_path: Path
) -> None:
    """C32: what transformers does, whatever the settings say."""
    from transformers import AutoTokenizer

    document = byte_level_json("smollm")
    if template:
        document = with_start_token(document)
    companions = files(document, add_bos_token=setting)
    (tmp_path / "tok").mkdir()
    for name, data in companions.items():
        (tmp_path / "tok" / name).write_bytes(data)
    expected = AutoTokenizer.from_pretrained(tmp_path / "tok")("hello").input_ids
    checkpoint, _ = through_gguf(companions, tmp_path)
    assert checkpoint.metadata["tokenizer.ggml.add_bos_token"] is (expected[0] == 0)
    assert checkpoint.metadata["tokenizer.ggml.add_eos_token"] is False
    ours = Tokenizer.from_checkpoint(checkpoint)
    assert ours.encode("hello") == expected
    assert 0 not in ours.encode("hello", special=False)


def test_special_ids_stop_ids_template_and_sampling(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    generation: dict[str, Any] = {
        "bos_token_id": 0,
        "eos_token_id": [1, 4],
        "pad_token_id": 2,
        "do_sample": True,
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.8,
        "repetition_penalty": 1.1,
    }
    companions = {
        **files(
            byte_level_json("smollm"),
            pad_token={"content": "<pad>"},
            sep_token="<|im_start|>",
            chat_template="old",
        ),
        "chat_template.jinja": template.encode(),
        "generation_config.json": json.dumps(generation).encode(),
        "extra.json": b"{}",
    }
    checkpoint, warnings = through_gguf(companions, tmp_path)
    found = checkpoint.companion_reader()
    assert found["chat_template.jinja"].decode() == template
    settings = json.loads(found["tokenizer_config.json"])
    assert settings["chat_template"] == template
    assert (settings["bos_token"], settings["eos_token"]) == ("<s>", "</s>")
    assert (settings["pad_token"], settings["sep_token"]) == ("<pad>", "<|im_start|>")
    del generation["repetition_penalty"]
    assert json.loads(found["generation_config.json"]) == generation
    assert any("repetition_penalty = 1.1" in line for line in warnings)
    assert any(line.startswith("extra.json") for line in warnings)
    ours = Tokenizer.from_checkpoint(checkpoint)
    assert set(ours.eos_ids) == {1, 4}
    assert ours.render_chat([{"role": "user", "content": "hi"}]) == "hi"
    assert checkpoint.config["eos_token_id"] == 1
    assert checkpoint.metadata["tokenizer.ggml.eot_token_id"] == 4


def test_greedy_settings_stay_greedy(tmp_path: Path) -> None:
    companions = {
        **files(byte_level_json("smollm")),
        "generation_config.json": b'{"do_sample": false, "temperature": 0.6, "eos_token_id": 1}',
    }
    checkpoint, _ = through_gguf(companions, tmp_path)
    found = json.loads(checkpoint.companion_reader()["generation_config.json"])
    assert found == {"eos_token_id": 1, "bos_token_id": 0}


def test_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    checkpoint, warnings = through_gguf({}, tmp_path)
    assert any("no tokenizer" in line for line in warnings)
    assert set(checkpoint.companion_reader()) == {"generation_config.json"}


def test_normalizers_without_a_name_are_warned_about(tmp_path: Path) -> None:
    document = edited(byte_level_json("smollm"), normalizer={"type": "NFC"})
    _, warnings = through_gguf(files(document), tmp_path)
    assert warnings == ("tokenizer.json: normalizer NFC cannot be said in GGUF and is left out",)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"pre_tokenizer": {"type": "Whitespace"}}, "cannot be stored in GGUF"),
        ({"model": {"type": "Unigram", "vocab": []}}, "Unigram"),
        ({"post_processor": {"type": "RobertaProcessing"}}, "post_processor"),
    ],
)
def test_tokenizers_that_gguf_cannot_hold_are_refused(
    changes: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=match):
        through_gguf(files(edited(byte_level_json("smollm"), **changes)), tmp_path)


def test_white_space_that_belongs_to_tokens(tmp_path: Path) -> None:
    """The pattern of Phi-3 gets through by the name of the model; others are warned about."""
    document = json.loads(sentencepiece_json())
    ids = document["model"]["vocab"]
    for text in ("<|endoftext|>", "<|user|>"):
        ids[text] = len(ids)
        document["added_tokens"].append(
            {**document["added_tokens"][0], "content": text, "id": ids[text]}
        )
    for token in document["added_tokens"]:
        token["rstrip"] = token["content"] in ("</s>", "<|user|>")
    companions = files(json.dumps(document), unk_token="<unk>")
    checkpoint, warnings = through_gguf(companions, tmp_path, rows=602)
    assert not warnings
    assert "phi-3" in checkpoint.metadata["general.name"]
    found = json.loads(checkpoint.companion_reader()["tokenizer.json"])
    assert {t["content"]: t["rstrip"] for t in found["added_tokens"]} == {
        t["content"]: t["rstrip"] for t in document["added_tokens"]
    }
    texts = ["<|user|>  hi </s>  x <s> y"]
    assert ids_of(json.dumps(found), texts) == ids_of(json.dumps(document), texts)

    document["added_tokens"][-1]["lstrip"] = True
    document["added_tokens"][0]["rstrip"] = True
    checkpoint, warnings = through_gguf(files(json.dumps(document)), tmp_path, rows=602)
    assert "phi-3" not in checkpoint.metadata["general.name"]
    assert sum("strip of" in line for line in warnings) == 2


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("tokenizer.ggml.pre", "made-up", "'made-up' is not known"),
        ("tokenizer.ggml.model", "bert", "'bert' is not supported"),
    ],
)
def test_unknown_kinds_in_a_file_are_named(
    key: str, value: str, match: str, tmp_path: Path
) -> None:
    checkpoint, _ = through_gguf(files(byte_level_json("smollm")), tmp_path)
    checkpoint.metadata[key] = value  # type: ignore[index]
    with pytest.raises(ModelError, match=match):
        checkpoint.companion_reader()
