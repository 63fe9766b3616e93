"""GGUF metadata of a tokenizer, from the files of a Hugging Face folder."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from gguf.constants import TokenType

from quantkit.core.config import id_list
from quantkit.errors import ModelError
from quantkit.formats.gguf import pretokenizer, spm
from quantkit.formats.gguf.encode import MetadataBuilder
from quantkit.formats.gguf.tokenizer_files import TokenizerFiles
from quantkit.formats.gguf.tokenizer_read import SAMPLING, SPACE, SPECIAL_IDS
from quantkit.formats.gguf.vocabulary import Vocabulary, build_vocabulary

_LIST = "tokenizer.ggml."
# Numbers of generation_config.json that say nothing about sampling.
_GENERATION_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def write_tokenizer(
    out: MetadataBuilder, files: TokenizerFiles, config: Mapping[str, Any], rows: int
) -> tuple[list[str], bool]:
    """Add the tokenizer, special tokens, chat template and sampling settings.

    Args:
        out: gains the entries.
        files: the companion files.
        config: config.json, for special ids that the tokenizer does not name.
        rows: rows of the embedding.

    Returns:
        Warnings, one line each; and whether white space after special tokens belongs to them as in
        Phi-3.

    Raises:
        ModelError: the tokenizer is of a kind that GGUF cannot hold, or does not fit the model.
    """
    warnings = [f"{name} has no place in a GGUF file and is left out" for name in files.unused]
    warnings += _write_sampling(out, files.generation)
    if files.template is not None:
        out.text("tokenizer.chat_template", files.template)
    if files.tokenizer is None:
        out.text(_LIST + "model", "no_vocab")
        return [
            *warnings,
            "the model has no tokenizer; llama.cpp can only run it on token ids",
        ], False
    tokenizer = files.tokenizer
    if tokenizer.get("model", {}).get("type") != "BPE":
        kind = tokenizer.get("model", {}).get("type")
        raise ModelError(
            f"tokenizer.json: a {kind} tokenizer cannot be stored in GGUF",
            hint="byte-level and sentencepiece BPE tokenizers can",
        )
    merges = [
        (pair[0], pair[1]) if isinstance(pair, list) else _split(pair)
        for pair in tokenizer["model"]["merges"]
    ]
    byte_level = _mentions(tokenizer.get("pre_tokenizer"), "ByteLevel")
    named = [text for name in SPECIAL_IDS.values() if (text := files.token_text(name))]
    vocabulary = build_vocabulary(tokenizer, rows, named, bytes_as_tokens=not byte_level)
    write = _write_byte_level if byte_level else _write_sentencepiece
    warnings += [*vocabulary.warnings, *write(out, tokenizer, vocabulary, merges)]
    out.texts(_LIST + "tokens", vocabulary.tokens)
    out.integers(_LIST + "token_type", vocabulary.kinds)
    _write_special(out, files, config, vocabulary)
    return warnings, vocabulary.strips_like_phi3


def _write_byte_level(
    out: MetadataBuilder,
    tokenizer: Mapping[str, Any],
    vocabulary: Vocabulary,
    merges: Sequence[tuple[str, str]],
) -> list[str]:
    cut = pretokenizer.by_structure(tokenizer)
    if cut is None:
        raise ModelError(
            "tokenizer.json: GGUF has no name for its pre_tokenizer "
            f"{_shorten(tokenizer.get('pre_tokenizer'))}",
            hint="known: " + ", ".join(row.names[0] for row in pretokenizer.TABLE),
        )
    out.text(_LIST + "model", "gpt2")
    out.text(_LIST + "pre", cut.names[0])
    out.texts(_LIST + "merges", [f"{left} {right}" for left, right in merges])
    normalizer = pretokenizer.normalizer_name(tokenizer)
    if normalizer == cut.normalizer:
        return []
    return [f"tokenizer.json: normalizer {normalizer} cannot be said in GGUF and is left out"]


def _write_sentencepiece(
    out: MetadataBuilder,
    tokenizer: Mapping[str, Any],
    vocabulary: Vocabulary,
    merges: Sequence[tuple[str, str]],
) -> list[str]:
    prefix, warnings = _space_prefix(tokenizer)
    scores = spm.scores_from_merges(merges)
    joined = {
        token: 0.0
        for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)
        if kind == TokenType.NORMAL
    }
    missing = spm.missing_merges(vocabulary.ids, merges, joined)
    if missing:
        warnings.append(
            f"tokenizer.json: {missing} pairs that make a token are not in its merges; llama.cpp "
            "joins them, so some texts may get other ids there"
        )
    out.text(_LIST + "model", "llama")
    out.text(_LIST + "pre", "default")
    out.reals(_LIST + "scores", [scores.get(token, 0.0) for token in vocabulary.tokens])
    out.flag(_LIST + "add_space_prefix", prefix)
    return warnings


def _space_prefix(tokenizer: Mapping[str, Any]) -> tuple[bool, list[str]]:
    """Whether a space is put before the text, with a warning where GGUF puts it elsewhere."""
    normalizer, cut = tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer")
    parts = normalizer["normalizers"] if _is(normalizer, "Sequence") else [normalizer]
    match parts, cut:
        case [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "content": "▁"}], None:
            return True, []
        case [{"type": "Replace", "content": "▁"}], None:
            return False, []
        case [None], {"type": "Metaspace", "replacement": "▁", "prepend_scheme": str(scheme)}:
            if scheme == "never":
                return False, []
            places = ["before a text that begins with one"]
            if scheme == "first":
                places.append("after a special token")
            return True, [
                f"tokenizer.json puts no space {place}, llama.cpp does; such texts get other ids "
                "there"
                for place in places
            ]
    raise ModelError(
        f"tokenizer.json: normalizer {_shorten(normalizer)} with pre_tokenizer {_shorten(cut)} "
        "cannot be stored in GGUF",
        hint=f"sentencepiece tokenizers turn a space into {SPACE} and do nothing else",
    )


def _write_special(
    out: MetadataBuilder,
    files: TokenizerFiles,
    config: Mapping[str, Any],
    vocabulary: Vocabulary,
) -> None:
    """Ids of the special tokens, and which of them are added to a text."""
    ids: dict[str, int] = {}
    for kind, name in SPECIAL_IDS.items():
        found = vocabulary.ids.get(files.token_text(name) or "")
        named = id_list(config.get(f"{name}_id"))
        if found is None and named and 0 <= named[0] < len(vocabulary.tokens):
            found = named[0]
        if found is not None:
            ids[kind] = found
    before, after = _added(files.tokenizer or {}, vocabulary)
    # tokenizer.json decides whether they are added, as in transformers, and not add_bos_token.
    for kind, token in (("bos", before), ("eos", after)):
        if token is not None and ids.setdefault(kind, token) != token:
            raise ModelError(
                f"tokenizer.json adds token {token} to every text, which is not its {kind} token"
            )
        out.flag(f"{_LIST}add_{kind}_token", token is not None)
    ends = [i for i in id_list(files.generation.get("eos_token_id")) if i != ids.get("eos")]
    for kind, index in zip(("eot", "eom"), ends, strict=False):
        if 0 <= index < len(vocabulary.tokens):
            ids[kind] = index
    for kind, index in ids.items():
        out.integer(f"{_LIST}{kind}_token_id", index)


def _added(tokenizer: Mapping[str, Any], vocabulary: Vocabulary) -> tuple[int | None, int | None]:
    """Ids of the tokens that the post-processor puts before and after every text."""
    node = tokenizer.get("post_processor")
    parts = node["processors"] if _is(node, "Sequence") else [node]
    template = [part for part in parts if part is not None and part["type"] != "ByteLevel"]
    if not template:
        return None, None
    if len(template) > 1 or template[0]["type"] != "TemplateProcessing":
        raise ModelError(
            f"tokenizer.json: post_processor {_shorten(node)} cannot be stored in GGUF"
        )
    single = template[0]["single"]
    at = next(i for i, part in enumerate(single) if "Sequence" in part)
    sides = [
        [part["SpecialToken"]["id"] for part in side] for side in (single[:at], single[at + 1 :])
    ]
    if any(len(side) > 1 for side in sides):
        raise ModelError("tokenizer.json adds several tokens to every text, which GGUF cannot say")
    before, after = (vocabulary.ids[side[0]] if side else None for side in sides)
    return before, after


def _write_sampling(out: MetadataBuilder, generation: Mapping[str, Any]) -> list[str]:
    """Default sampling settings, where the model samples by default."""
    if not generation.get("do_sample"):
        return []
    left = []
    for key, value in generation.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or key in _GENERATION_IDS:
            continue
        if key not in SAMPLING:
            left.append(f"generation_config.json: {key} = {value} is not carried over to GGUF")
        elif key == "top_k":
            out.integer(SAMPLING[key], int(value))
        else:
            out.real(SAMPLING[key], value)
    return left


def _split(pair: str) -> tuple[str, str]:
    left, _, right = pair.partition(" ")
    return left, right


def _is(node: Any, kind: str) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(node, Mapping) and node.get("type") == kind


def _mentions(node: Any, kind: str) -> bool:
    """Whether a step, or a step of a sequence, is of a kind."""
    return _is(node, kind) or (
        _is(node, "Sequence") and any(_is(part, kind) for part in node["pretokenizers"])
    )


def _shorten(node: Any) -> str:
    text = repr(node)
    return text if len(text) <= 160 else text[:157] + "..."
