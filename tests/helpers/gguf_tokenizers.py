"""Tokenizers trained on the spot, as the files of a model folder, and their way through GGUF."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from quantkit.core.checkpoint import Checkpoint
from quantkit.formats import open_model
from quantkit.formats.gguf import pretokenizer
from tests.helpers.folders import CONFIG, float_tensors, write_folder
from tests.helpers.gguf_files import plan_of, stored_as, write_gguf
from tests.helpers.odd_texts import odd_texts
from tests.helpers.tiny import TEXT

SPECIAL = ("<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>")


@cache
def byte_level_json(pre: str, size: int = 600) -> str:
    """tokenizer.json of a byte-level BPE whose text is cut as GGUF calls ``pre``."""
    row = pretokenizer.by_name(pre, "test")
    base = tokenizers.Tokenizer(models.BPE(ignore_merges=row.ignore_merges))
    document = json.loads(base.to_str())
    document["pre_tokenizer"] = pretokenizer.to_json(row)
    document["normalizer"] = row.normalizer and {"type": row.normalizer}
    backend = tokenizers.Tokenizer.from_str(json.dumps(document))
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator([TEXT, *odd_texts()], trainer)
    return str(backend.to_str())


@cache
def sentencepiece_json(size: int = 600, *, scheme: str = "prepend") -> str:
    """tokenizer.json as transformers makes it from a sentencepiece BPE model with byte fallback.

    Args:
        size: tokens.
        scheme: ``prepend`` for the older form of the space before the text, or the
            ``prepend_scheme`` of a Metaspace step: always, first or never.
    """
    pieces, scores = sentencepiece_pieces(size)
    ids = {piece: index for index, piece in enumerate(pieces)}
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, score in zip(pieces, scores, strict=True):
        if piece.startswith("<") and piece.endswith(">"):
            continue
        for at in range(1, len(piece)):
            left, right = piece[:at], piece[at:]
            if left in ids and right in ids:
                merges.append((-score, ids[left], ids[right], left, right))
    pairs = [(left, right) for *_, left, right in sorted(merges)]
    backend = tokenizers.Tokenizer(
        models.BPE(ids, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    if scheme == "prepend":
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    strip = [] if scheme == "never" else [decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence([*steps, *strip])
    backend.add_special_tokens(
        [tokenizers.AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")]
    )
    return str(backend.to_str())


@cache
def sentencepiece_model(size: int = 600) -> bytes:
    """A sentencepiece BPE model file, trained on two library sources."""
    import io

    import sentencepiece

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()),
        model_writer=out,
        model_type="bpe",
        vocab_size=size,
        byte_fallback=True,
        character_coverage=0.999,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return out.getvalue()


def sentencepiece_pieces(size: int = 600) -> tuple[list[str], list[float]]:
    """Pieces and scores of the model file."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(size))
    indices = range(processor.vocab_size())
    return [processor.id_to_piece(i) for i in indices], [processor.get_score(i) for i in indices]


def with_start_token(document: str, token: str = "<s>") -> str:
    """The same tokenizer, which puts a start token before every text."""
    backend = tokenizers.Tokenizer.from_str(document)
    index = backend.token_to_id(token)
    backend.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, index)]
    )
    return str(backend.to_str())


def files(document: str, **settings: Any) -> dict[str, bytes]:
    """Companion files of a model with this tokenizer; None drops a setting."""
    base: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "clean_up_tokenization_spaces": False,
    }
    merged = {key: value for key, value in (base | settings).items() if value is not None}
    return {
        "tokenizer.json": document.encode(),
        "tokenizer_config.json": json.dumps(merged).encode(),
    }


def through_gguf(
    companions: Mapping[str, bytes],
    folder: Path,
    *,
    rows: int = 600,
    config: Mapping[str, Any] | None = None,
) -> tuple[Checkpoint, tuple[str, ...]]:
    """Write a tiny llama with these files to GGUF; the file opened again, and the warnings."""
    settings = {**CONFIG, "vocab_size": rows}
    tensors = float_tensors(settings)
    source = open_model(write_folder(folder / "hf", tensors, config=settings))
    values = stored_as(source, "F32")
    plan = plan_of(source, values, companions=companions, config={**settings, **(config or {})})
    warnings = write_gguf(plan, values, folder / "m.gguf", force=True)
    return open_model(folder / "m.gguf"), warnings


def ids_of(document: str | bytes, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
    """Token ids by the tokenizers library alone."""
    text = document.decode() if isinstance(document, bytes) else document
    backend = tokenizers.Tokenizer.from_str(text)
    return [backend.encode(text, add_special_tokens=special).ids for text in texts]
