"""The token list of a tokenizer.json: one token and one kind for every row of the embedding."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gguf.constants import TokenType

from quantkit.errors import ModelError
from quantkit.formats.gguf.tokenizer_read import PHI3_PLAIN

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_MARKED = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, as long as the embedding.

    Attributes:
        tokens: text of each token; rows without one get an unused filler.
        kinds: kind of each token.
        ids: text -> id, without fillers.
        strips_like_phi3: white space after special tokens belongs to them, as in Phi-3, which GGUF
            can only say by the name of the model.
        warnings: what GGUF cannot say about single tokens.
    """

    tokens: list[str]
    kinds: list[int]
    ids: dict[str, int]
    strips_like_phi3: bool
    warnings: tuple[str, ...]


def build_vocabulary(
    tokenizer: Mapping[str, Any], rows: int, named: Collection[str], *, bytes_as_tokens: bool
) -> Vocabulary:
    """List the tokens.

    Args:
        tokenizer: tokenizer.json with a BPE model.
        rows: rows of the embedding.
        named: special tokens of the settings, which count as special wherever they stand.
        bytes_as_tokens: ``<0x0A>`` stands for a byte, as in sentencepiece vocabularies.

    Raises:
        ModelError: two tokens share an id, or a token has no row.
    """
    model = tokenizer["model"]
    ids: dict[str, int] = dict(model["vocab"])
    added: dict[str, Mapping[str, Any]] = {}
    for token in tokenizer.get("added_tokens") or []:
        text = token["content"]
        if ids.setdefault(text, token["id"]) != token["id"]:
            raise ModelError(
                f"tokenizer.json: token {text!r} has the ids {ids[text]}, {token['id']}"
            )
        added[text] = token
    by_id: dict[int, str] = {}
    for text, index in ids.items():
        if by_id.setdefault(index, text) != text:
            raise ModelError(
                f"tokenizer.json: tokens {by_id[index]!r} and {text!r} share the id {index}"
            )
    beyond = sorted(index for index in by_id if index >= rows)
    if beyond:
        shown = ", ".join(f"{index} ({by_id[index]!r})" for index in beyond[:8])
        raise ModelError(
            f"the embedding has {rows} rows, so {len(beyond)} tokens have none: {shown}",
            hint="the tokenizer belongs to another model, or the embedding was not resized",
        )
    tokens, kinds = [], []
    for index in range(rows):
        text = by_id.get(index, "")
        if index not in by_id:
            text = f"[PAD{index}]"
            while text in ids:
                text += "_"
            kinds.append(TokenType.UNUSED)
        elif bytes_as_tokens and text == model.get("unk_token"):
            kinds.append(TokenType.UNKNOWN)
        elif text in added or text in named:
            special = text in named or added[text].get("special")
            kinds.append(TokenType.CONTROL if special else TokenType.USER_DEFINED)
        elif bytes_as_tokens and _BYTE.fullmatch(text):
            kinds.append(TokenType.BYTE)
        else:
            kinds.append(TokenType.NORMAL)
        tokens.append(text)
    marked = {
        text: added.get(text, {})
        for text, kind in zip(tokens, kinds, strict=True)
        if kind in _MARKED
    }
    strips = _strips_like_phi3(marked)
    return Vocabulary(tokens, [int(k) for k in kinds], ids, strips, _warnings(added, strips))


def _strips_like_phi3(marked: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether exactly the tokens do so that llama.cpp lets strip in Phi-3, and all those exist."""
    if not {"<s>", "</s>", "<unk>", "<|endoftext|>"} <= marked.keys():
        return False
    return all(
        bool(flags.get("rstrip")) == (text not in PHI3_PLAIN) for text, flags in marked.items()
    )


def _warnings(added: Mapping[str, Mapping[str, Any]], strips: bool) -> tuple[str, ...]:
    flags = ("lstrip", "single_word") if strips else ("lstrip", "rstrip", "single_word")
    found = []
    for flag in flags:
        texts = [text for text, token in added.items() if token.get(flag)]
        if texts:
            found.append(
                f"tokenizer.json: {flag} of {len(texts)} tokens ({texts[0]!r}) cannot be said in "
                "GGUF; white space beside them may get other ids"
            )
    return tuple(found)
