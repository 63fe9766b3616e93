"""Calibration and evaluation data: names of data sets in, token windows out."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch

from quantkit.calibration.document import Draw, Tokenizer
from quantkit.calibration.packing import MIN_DOCUMENT_TOKENS, Feed, pack_windows
from quantkit.calibration.sources import BUILTIN, Source, open_source
from quantkit.calibration.windows import SourceReport, Windows
from quantkit.errors import DataError, UsageError

Split = Literal["calibration", "evaluation"]


def load_windows(
    tokenizer: Tokenizer,
    datasets: Sequence[str],
    num_samples: int,
    seq_len: int,
    seed: int = 0,
    *,
    pack: bool = True,
    split: Split = "calibration",
    warn: Callable[[str], None],
) -> Windows:
    """Read up to `num_samples` windows of `seq_len` tokens.

    Every source gets the same share, and `builtin` mixes its kinds of text in fixed shares. The
    documents of a source are drawn in an order that `seed` decides and that is spread over the
    whole source; no more is tokenized than is used. Where a source ends early the others fill in.

    Args:
        tokenizer: of the model that will read the windows.
        datasets: `builtin`; a text, JSONL, JSON or Parquet file; a folder of those or of a data
            set saved to disk; NAME[:CONFIG[:SPLIT]] of a data set on the hub.
        num_samples: how many windows.
        seq_len: tokens per window, L.
        seed: decides which documents, and their order.
        pack: join documents to full windows, each seeing only itself; otherwise one document (of a
            plain text file: one line) per window, cut or padded.
        split: which part of `builtin`, and which split of a data set that names none.
        warn: called once, with one line, when there is less than was asked for, and once for every
            source of conversations where the tokenizer has no chat template.

    Raises:
        DataError: a source cannot be read, or there is no usable text in all of them.
        UsageError: no source, the same source twice, or a size that cannot be meant.
    """
    _check_arguments(datasets, num_samples, seq_len)
    sources = [open_source(name, split) for name in datasets]
    feeds: list[Feed] = []
    for number, source in enumerate(sources):
        for stream in source.streams:
            draw = Draw(_generator(seed, len(feeds)), num_samples * seq_len, seq_len, pack)
            share = stream.share / len(sources)
            documents = stream.documents(draw)
            feeds.append(Feed(number, stream.name, share, documents))
    ids, docs = pack_windows(feeds, tokenizer, num_samples, seq_len, pack)
    if not len(ids):
        raise DataError(
            f"{', '.join(datasets)}: no usable text (no document has {MIN_DOCUMENT_TOKENS} tokens)",
            hint="give a file with text, or `builtin`",
        )
    grouped = [[f for f in feeds if f.source == number] for number in range(len(sources))]
    for source, own in zip(sources, grouped, strict=True):
        if source.name != BUILTIN and any(feed.num_plain for feed in own):
            warn(
                f"{source.name}: the tokenizer has no chat template; "
                "conversations are written as plain `User:` and `Assistant:` lines"
            )
    reports = tuple(
        _report(source, own, _samples_of(number, len(sources), num_samples) * seq_len)
        for number, (source, own) in enumerate(zip(sources, grouped, strict=True))
    )
    windows = Windows(ids, docs, reports, num_samples, num_samples * seq_len)
    shortfall = _packed_shortfall(windows, grouped) if pack else _unpacked_shortfall(windows)
    if shortfall is not None:
        warn(shortfall)
        windows = replace(windows, shortfall=shortfall)
    return windows


def _check_arguments(datasets: Sequence[str], num_samples: int, seq_len: int) -> None:
    if not datasets:
        raise UsageError("no data set given", hint="give `builtin`, a file, a folder or a name")
    if len(set(datasets)) < len(datasets):
        twice = next(name for name in datasets if datasets.count(name) > 1)
        raise UsageError(f"data set {twice} given twice", hint="name each data set once")
    if num_samples < 1:
        raise UsageError(f"number of samples is {num_samples}, below 1")
    if seq_len < MIN_DOCUMENT_TOKENS:
        raise UsageError(f"sequence length is {seq_len}, below {MIN_DOCUMENT_TOKENS}")


def _generator(seed: int, stream: int) -> torch.Generator:
    """A generator of its own for each stream, so that none changes what another draws."""
    mixed = hashlib.sha256(f"{seed}/{stream}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(mixed[:7], "big"))


def _samples_of(number: int, num_sources: int, num_samples: int) -> int:
    """How many of the windows source `number` is asked for; the first ones take the remainder."""
    return num_samples // num_sources + (number < num_samples % num_sources)


def _report(source: Source, feeds: list[Feed], tokens_asked: int) -> SourceReport:
    digests = [feed.digest for feed in feeds]
    if len(digests) == 1:
        digest = digests[0].hexdigest()
    else:
        digest = hashlib.sha256(b"".join(each.digest() for each in digests)).hexdigest()
    return SourceReport(
        source.name,
        sum(feed.num_documents for feed in feeds),
        sum(feed.num_dropped for feed in feeds),
        tokens_asked,
        sum(feed.num_tokens for feed in feeds),
        digest,
        tuple((feed.name, feed.num_tokens) for feed in feeds) if len(feeds) > 1 else (),
    )


def _packed_shortfall(windows: Windows, grouped: list[list[Feed]]) -> str | None:
    """What is missing: tokens in all, or tokens of a source that ended before its share."""
    short = [
        f"{report.name} gave {report.tokens_used} of {report.tokens_asked} tokens"
        for report, feeds in zip(windows.sources, grouped, strict=True)
        if all(feed.is_exhausted for feed in feeds) and report.tokens_used < report.tokens_asked
    ]
    if windows.num_tokens < windows.tokens_asked:
        return f"{_asked_and_used(windows)}: {'; '.join(short)}"
    if short:
        return f"calibration data: {'; '.join(short)}; the other sources filled in"
    return None


def _unpacked_shortfall(windows: Windows) -> str | None:
    if windows.num_windows < windows.samples_asked:
        return _asked_and_used(windows)
    return None


def _asked_and_used(windows: Windows) -> str:
    return (
        f"calibration data: asked for {windows.samples_asked} windows of {windows.seq_len} tokens "
        f"({windows.tokens_asked} tokens), used {windows.num_windows} windows with "
        f"{windows.num_tokens} tokens"
    )
