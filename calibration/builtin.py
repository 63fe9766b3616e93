"""`builtin`: calibration and evaluation text that needs no network.

Seven kinds: five from the corpus written for this project (calibration/corpus), and two that every
Python installation carries, read when asked for: the language reference of `pydoc_data.topics` and
sources of the standard library. What an installation lacks is left out, and the digest shows it.

Documents are whole texts, conversations, topics or modules. Of each kind, every fifth belongs to
evaluation and the others to calibration, so that no text is in both.
"""

import importlib
import importlib.machinery
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from quantkit.calibration.document import plain_dialogue
from quantkit.calibration.textfile import split_text
from quantkit.calibration.windows import spread_evenly
from quantkit.errors import DataError

CORPUS = Path(__file__).parent / "corpus"
CUT_LINE = "-----8<-----\n"


@dataclass(frozen=True)
class Kind:
    """A kind of text, and its share of the tokens."""

    name: str
    share: float


KINDS = (
    Kind("prose", 0.20),
    Kind("dialogue", 0.15),
    Kind("code", 0.15),
    Kind("mathematics", 0.10),
    Kind("languages", 0.15),
    Kind("reference", 0.125),
    Kind("library", 0.125),
)

# Modules of mixed style; none that an interpreter has frozen in, because those carry no source.
LIBRARY_MODULES = (
    "argparse", "ast", "asyncio.queues", "asyncio.tasks", "bisect", "calendar", "cmd", "colorsys",
    "concurrent.futures.thread", "configparser", "contextlib", "copy", "csv", "dataclasses",
    "difflib", "email.message", "enum", "fractions", "ftplib", "functools", "gettext", "graphlib",
    "heapq", "html.parser", "http.server", "ipaddress", "json.decoder", "json.encoder", "logging",
    "mailbox", "optparse", "plistlib", "pprint", "queue", "random", "sched", "selectors", "shlex",
    "smtplib", "socketserver", "statistics", "string", "tempfile", "textwrap", "threading",
    "timeit", "tokenize", "unittest.case", "urllib.parse", "uuid", "wave", "zipfile",
)  # fmt: skip
_EVALUATION_EVERY = 5
# In one running text: pieces of this size, and so many of each document, so that long modules of
# the standard library do not outweigh everything else.
_PIECE_CHARS = 4096
_MAX_PIECES = 3
# Shorter paragraphs, such as one-line examples, may come twice.
_LONG_PARAGRAPH_CHARS = 60


@dataclass(frozen=True)
class BuiltinDocument:
    """One document of `builtin`: a text, or a conversation if `messages` is not empty."""

    kind: str
    name: str
    text: str = ""
    messages: tuple[dict[str, Any], ...] = ()


def builtin_documents(split: str) -> list[BuiltinDocument]:
    """All documents of "calibration" or "evaluation", kind by kind.

    Raises:
        DataError: a file of the corpus is missing.
    """
    found = []
    for kind in KINDS:
        for index, document in enumerate(_documents(kind.name)):
            is_evaluation = index % _EVALUATION_EVERY == _EVALUATION_EVERY - 1
            if is_evaluation == (split == "evaluation"):
                found.append(document)
    return found


def builtin_text(split: str) -> str:
    """The documents of one part as one text, the kinds spread evenly from beginning to end.

    Long documents come in pieces and are cut off; conversations are written as plain lines.
    """
    order = {kind.name: number for number, kind in enumerate(KINDS)}
    owners: list[int] = []
    pieces: list[str] = []
    for document in builtin_documents(split):
        text = plain_dialogue(document.messages) if document.messages else document.text
        for piece in split_text(text, _PIECE_CHARS)[:_MAX_PIECES]:
            owners.append(order[document.kind])
            pieces.append(piece.strip("\n"))
    return "\n\n".join(pieces[index] for index in spread_evenly(owners)) + "\n"


@cache
def _documents(kind: str) -> tuple[BuiltinDocument, ...]:
    if kind == "reference":
        return _reference_topics()
    if kind == "library":
        return _library_modules()
    documents = []
    for path in sorted(CORPUS.glob(f"{kind}*")):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            documents += [
                BuiltinDocument(
                    kind, f"{path.name}:{number}", "", tuple(json.loads(line)["messages"])
                )
                for number, line in enumerate(text.splitlines(), 1)
            ]
        else:
            documents += [
                BuiltinDocument(kind, f"{path.name}:{number}", part.strip("\n") + "\n")
                for number, part in enumerate(text.split(CUT_LINE), 1)
            ]
    if not documents:
        raise DataError(
            f"{CORPUS}: no text of the kind {kind}",
            hint="quantkit is not installed completely; install it again",
        )
    return tuple(documents)


def _reference_topics() -> tuple[BuiltinDocument, ...]:
    """The topics, largest first, without the paragraphs that an earlier one has.

    Many small topics are sections of a large one; one that has nothing of its own is left out.
    """
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ModuleNotFoundError:
        return ()
    documents = []
    seen: set[str] = set()
    for name in sorted(topics, key=lambda name: (-len(topics[name]), name)):
        paragraphs = topics[name].strip().split("\n\n")
        keys = [" ".join(paragraph.split()) for paragraph in paragraphs]
        fresh = [p for p, key in zip(paragraphs, keys, strict=True) if key not in seen]
        seen.update(key for key in keys if len(key) >= _LONG_PARAGRAPH_CHARS)
        if 2 * len(fresh) > len(paragraphs):
            documents.append(BuiltinDocument("reference", name, "\n\n".join(fresh) + "\n"))
    return tuple(documents)


def _library_modules() -> tuple[BuiltinDocument, ...]:
    documents = []
    for name in LIBRARY_MODULES:
        source = _module_source(name)
        if source is not None:
            documents.append(BuiltinDocument("library", name, source))
    return tuple(documents)


def _module_source(name: str) -> str | None:
    """Source of a module, found without running it or the packages that hold it."""
    path = None
    loader = None
    parts = name.split(".")
    for depth in range(len(parts)):
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[: depth + 1]), path)
        if spec is None:
            return None
        path, loader = spec.submodule_search_locations, spec.loader
    read = getattr(loader, "get_source", None)
    source: str | None = None if read is None else read(name)
    return source
