"""Tokenizer files of a Hugging Face folder, rebuilt from GGUF metadata."""

import json
from collections.abc import Mapping
from typing import Any

from gguf.constants import Keys, TokenType

from quantkit.errors import ModelError
from quantkit.formats.gguf import pretokenizer, spm
from quantkit.formats.gguf.config_read import token_id
from quantkit.formats.gguf.fields import Fields

SPACE = "▁"
SPECIAL_IDS = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
    # gguf-py's constant, since the format misspells the word
    Keys.Tokenizer.SEP_ID.removeprefix("tokenizer.ggml.").removesuffix("_token_id"): "sep_token",
    "mask": "mask_token",
}
SAMPLING = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
}
# llama.cpp lets the special tokens of a model of this name swallow the white space after them.
PHI3_NAMES = ("phi-3", "phi3")
PHI3_PLAIN = ("<unk>", "<s>", "<|endoftext|>")

_ADDED = {TokenType.CONTROL: True, TokenType.UNKNOWN: True, TokenType.USER_DEFINED: False}


def read_companions(fields: Fields, config: Mapping[str, Any]) -> dict[str, bytes]:
    """tokenizer.json, tokenizer_config.json, generation_config.json and chat_template.jinja.

    Args:
        fields: metadata of the file.
        config: the rebuilt config.json.

    Raises:
        ModelError: the tokenizer is of an unknown kind, or damaged.
    """
    files: dict[str, Any] = {"generation_config.json": _generation(fields, config)}
    model = fields.text("tokenizer.ggml.model", "none")
    if model in ("none", "no_vocab"):
        return {name: _dump(content) for name, content in files.items()}
    vocabulary = _Vocabulary(fields, config["vocab_size"])
    if model == "gpt2":
        tokenizer, add_bos = _byte_level(fields, vocabulary)
    elif model == "llama":
        tokenizer, add_bos = _sentencepiece(fields, vocabulary)
    else:
        raise ModelError(
            f"{fields.path}: tokenizer model {model!r} is not supported",
            hint="supported: gpt2 (byte-level BPE) and llama (sentencepiece)",
        )
    special = vocabulary.special
    settings: dict[str, Any] = {
        **special,
        "add_bos_token": fields.flag("tokenizer.ggml.add_bos_token", add_bos),
        "add_eos_token": fields.flag("tokenizer.ggml.add_eos_token", False),
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    for kind in ("bos", "eos"):
        if settings[f"add_{kind}_token"] and f"{kind}_token" not in special:
            raise ModelError(
                f"{fields.path}: tokenizer.ggml.add_{kind}_token is set without a {kind} token"
            )
    tokenizer["post_processor"] = _template(
        vocabulary,
        special["bos_token"] if settings["add_bos_token"] else None,
        special["eos_token"] if settings["add_eos_token"] else None,
    )
    if not settings["add_eos_token"]:
        del settings["add_eos_token"]
    if "tokenizer.chat_template" in fields:
        settings["chat_template"] = fields.text("tokenizer.chat_template")
        files["chat_template.jinja"] = settings["chat_template"]
    files |= {"tokenizer.json": tokenizer, "tokenizer_config.json": settings}
    return {name: _dump(content) for name, content in files.items()}


class _Vocabulary:
    """Tokens, their ids and kinds, without the fillers at the end.

    Attributes:
        ids: token -> id.
        kinds: kind of each token, by id.
        special: ``bos_token`` and the like -> token.
        added: what tokenizer.json calls added tokens.
    """

    def __init__(self, fields: Fields, rows: int) -> None:
        tokens = fields.items("tokenizer.ggml.tokens", str) or []
        kinds = fields.items("tokenizer.ggml.token_type", int) or [TokenType.NORMAL] * len(tokens)
        self.where = fields.path
        if len(kinds) != len(tokens):
            self._refuse(f"{len(tokens)} tokens and {len(kinds)} token types")
        if len(tokens) > rows:
            self._refuse(f"{len(tokens)} tokens for an embedding of {rows} rows")
        while tokens and kinds[-1] == TokenType.UNUSED and tokens[-1] == f"[PAD{len(tokens) - 1}]":
            tokens, kinds = tokens[:-1], kinds[:-1]
        self.ids: dict[str, int] = {}
        for index, token in enumerate(tokens):
            if self.ids.setdefault(token, index) != index:
                self._refuse(f"token {token!r} has the ids {self.ids[token]} and {index}")
        self.kinds: list[int] = kinds
        found = {name: token_id(fields, key, len(tokens)) for key, name in SPECIAL_IDS.items()}
        self.special = {name: tokens[at] for name, at in found.items() if at is not None}
        name = fields.text("general.name", "").lower()
        strips = any(part in name for part in PHI3_NAMES)
        self.added = [
            {
                "id": index,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": strips and token not in PHI3_PLAIN,
                "normalized": False,
                "special": _ADDED[TokenType(kind)],
            }
            for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind in _ADDED
        ]

    def _refuse(self, reason: str) -> None:
        raise ModelError(f"{self.where}: the tokenizer has {reason}")


def _byte_level(fields: Fields, vocabulary: _Vocabulary) -> tuple[dict[str, Any], bool]:
    """tokenizer.json of a byte-level BPE, and whether a start token is added by default."""
    cut = pretokenizer.by_name(fields.text("tokenizer.ggml.pre", "default"), fields.path)
    merges: list[tuple[str, str]] = []
    for merge in fields.items("tokenizer.ggml.merges", str) or []:
        at = merge.find(" ", 1)
        pair = (merge[:at], merge[at + 1 :])
        if at < 0 or any(part not in vocabulary.ids for part in (*pair, "".join(pair))):
            raise ModelError(
                f"{fields.path}: merge {merge!r} makes or needs a token that is absent"
            )
        merges.append(pair)
    tokenizer = _tokenizer(vocabulary, merges, ignore_merges=cut.ignore_merges)
    tokenizer["normalizer"] = {"type": cut.normalizer} if cut.normalizer else None
    tokenizer["pre_tokenizer"] = pretokenizer.to_json(cut)
    tokenizer["decoder"] = pretokenizer.byte_level(use_regex=True)
    return tokenizer, cut.add_bos


def _sentencepiece(fields: Fields, vocabulary: _Vocabulary) -> tuple[dict[str, Any], bool]:
    """tokenizer.json of a sentencepiece BPE, which adds a start token by default."""
    scores = fields.items("tokenizer.ggml.scores", int | float) or []  # type: ignore[arg-type]
    if len(scores) < len(vocabulary.ids):
        raise ModelError(
            f"{fields.path}: the tokenizer has {len(vocabulary.ids)} tokens, {len(scores)} scores"
        )
    joined = {
        token: float(scores[index])
        for token, index in vocabulary.ids.items()
        if vocabulary.kinds[index] == TokenType.NORMAL
    }
    merges = spm.merges_from_scores(vocabulary.ids, joined)
    tokenizer = _tokenizer(
        vocabulary,
        merges,
        unk_token=vocabulary.special.get("unk_token"),
        fuse_unk=True,
        byte_fallback=TokenType.BYTE in vocabulary.kinds,
    )
    prefix = fields.flag("tokenizer.ggml.add_space_prefix", True)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = {"type": "Prepend", "prepend": SPACE}
    restore = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    tokenizer["normalizer"] = (
        {"type": "Sequence", "normalizers": [prepend, replace]} if prefix else replace
    )
    decoders = [restore, {"type": "ByteFallback"}, {"type": "Fuse"}] + ([strip] if prefix else [])
    tokenizer["decoder"] = {"type": "Sequence", "decoders": decoders}
    return tokenizer, True


def _tokenizer(
    vocabulary: _Vocabulary,
    merges: list[tuple[str, str]],
    *,
    unk_token: str | None = None,
    fuse_unk: bool = False,
    byte_fallback: bool = False,
    ignore_merges: bool = False,
) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added,
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unk_token,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": fuse_unk,
            "byte_fallback": byte_fallback,
            "ignore_merges": ignore_merges,
            "vocab": vocabulary.ids,
            "merges": [list(pair) for pair in merges],
        },
    }


def _template(vocabulary: _Vocabulary, bos: str | None, eos: str | None) -> dict[str, Any] | None:
    """Post-processor that adds the start and end token; None when neither is added."""
    if bos is None and eos is None:
        return None

    def around(sequence: str, number: int) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = [{"Sequence": {"id": sequence, "type_id": number}}]
        if bos is not None:
            parts.insert(0, {"SpecialToken": {"id": bos, "type_id": number}})
        if eos is not None:
            parts.append({"SpecialToken": {"id": eos, "type_id": number}})
        return parts

    used = [token for token in (bos, eos) if token is not None]
    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {
            token: {"id": token, "ids": [vocabulary.ids[token]], "tokens": [token]}
            for token in used
        },
    }


def _generation(fields: Fields, config: Mapping[str, Any]) -> dict[str, Any]:
    """Start, end and padding ids; every id that ends a turn; sampling settings."""
    ends = [config["eos_token_id"]]
    ends += [token_id(fields, kind, config["vocab_size"]) for kind in ("eot", "eom")]
    ends = list(dict.fromkeys(end for end in ends if end is not None))
    found = {
        "bos_token_id": config["bos_token_id"],
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": config["pad_token_id"],
    }
    result: dict[str, Any] = {key: value for key, value in found.items() if value is not None}
    sampling: dict[str, float] = {}
    for ours, key in SAMPLING.items():
        if key in fields:
            whole = ours == "top_k"
            sampling[ours] = fields.integer(key) if whole else fields.real(key)
    return result | ({"do_sample": True, **sampling} if sampling else {})


def _dump(content: Any) -> bytes:
    if isinstance(content, str):
        return content.encode()
    indent = None if "model" in content else 2  # indentation makes a vocabulary ten times slower
    return (json.dumps(content, indent=indent, ensure_ascii=False) + "\n").encode()
