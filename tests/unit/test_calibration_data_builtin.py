"""The built-in text: its parts do not overlap, every kind is everywhere, there is enough of it."""

import json
import sys
from collections import Counter
from typing import Any

import pytest
import torch

from quantkit.calibration import builtin
from quantkit.calibration.builtin import CORPUS, KINDS, builtin_documents, builtin_text
from quantkit.calibration.data import load_windows
from quantkit.errors import DataError

# English text has more than 3 bytes per token in any tokenizer trained on it, other scripts fewer
# characters; this is a cautious stand-in for a real tokenizer.
BYTES_PER_TOKEN = 3


class CoarseTokenizer:
    """A token for every three bytes."""

    has_chat_template = True

    def encode(self, text: str) -> list[int]:
        data = text.encode()
        steps = range(0, len(data), BYTES_PER_TOKEN)
        return [int.from_bytes(data[at : at + BYTES_PER_TOKEN]) for at in steps]

    def encode_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        return self.encode("".join(f"<{m['role']}>{m['content']}</>" for m in messages))


def encode(document: builtin.BuiltinDocument) -> list[int]:
    if document.messages:
        return CoarseTokenizer().encode_chat(list(document.messages))
    return CoarseTokenizer().encode(document.text)


def no_warning(message: str) -> None:
    pytest.fail(f"unexpected warning: {message}")


def content(document: builtin.BuiltinDocument) -> str:
    return "\n\n".join(str(m["content"]) for m in document.messages) or document.text


def test_evaluation_and_calibration_have_no_paragraph_in_common():
    paragraphs = {}
    for split in ("calibration", "evaluation"):
        paragraphs[split] = {
            " ".join(paragraph.split())
            for document in builtin_documents(split)
            for paragraph in content(document).split("\n\n")
            if len(" ".join(paragraph.split())) >= 100
        }
    assert len(paragraphs["evaluation"]) > 500
    common = paragraphs["calibration"] & paragraphs["evaluation"]
    # Two modules of the standard library may begin with the same license or imports.
    assert all(text.startswith(("#", "import ", "from ")) for text in common), common
    names = [
        {(each.kind, each.name) for each in builtin_documents(split)}
        for split in ("calibration", "evaluation")
    ]
    assert not names[0] & names[1]


def test_there_is_enough_of_every_kind():
    assert sum(kind.share for kind in KINDS) == pytest.approx(1)
    for split in ("calibration", "evaluation"):
        kinds = Counter(document.kind for document in builtin_documents(split))
        assert set(kinds) == {kind.name for kind in KINDS}
        assert min(kinds.values()) >= 3
    windows = load_windows(CoarseTokenizer(), ["builtin"], 128, 512, warn=no_warning)
    assert windows.num_tokens == 128 * 512
    assert len(builtin_text("evaluation").encode()) > 40_000 * BYTES_PER_TOKEN


def test_every_kind_is_in_any_run_of_windows():
    windows = load_windows(CoarseTokenizer(), ["builtin"], 128, 256, warn=no_warning)
    mix = dict(windows.sources[0].mix)
    total = sum(mix.values())
    assert total == 128 * 256
    for kind in KINDS:
        assert mix[kind.name] / total == pytest.approx(kind.share, abs=0.02)
    # The kind of a window is that of the document in which its first 24 bytes occur.
    documents = {
        b"".join(token.to_bytes(BYTES_PER_TOKEN) for token in encode(document)): document.kind
        for document in builtin_documents("calibration")
    }
    found = []
    for row in windows.ids[:, :8].tolist():
        mark = b"".join(token.to_bytes(BYTES_PER_TOKEN) for token in row)
        found.append(next((kind for data, kind in documents.items() if mark in data), None))
    assert Counter(found)[None] < 13
    for start in range(0, 128, 32):
        assert {*found[start : start + 32]} >= {kind.name for kind in KINDS}


def test_seed_changes_the_choice_and_nothing_else_does():
    def load(seed: int, split: str = "calibration"):
        return load_windows(
            CoarseTokenizer(), ["builtin"], 16, 128, seed, split=split, warn=no_warning
        )

    first = load(0)
    assert torch.equal(first.ids, load(0).ids)
    assert first.summary() == load(0).summary()
    assert first.digest != load(1).digest
    assert first.sources[0].digest != load(0, "evaluation").sources[0].digest


def test_evaluation_text_mixes_the_kinds_from_the_start():
    text = builtin_text("evaluation")
    assert text == builtin_text("evaluation")
    beginning = text[: len(text) // 3]
    for kind in KINDS:
        documents = [d for d in builtin_documents("evaluation") if d.kind == kind.name]
        marks = [content(document).strip()[:60] for document in documents]
        assert any(mark in beginning for mark in marks), kind.name
    assert "\nAssistant: " in text
    assert "-----8<-----" not in text


def test_corpus_files_are_well_formed():
    files = [path for path in sorted(CORPUS.iterdir()) if path.name != "README.md"]
    assert len(files) >= 12
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert len(text.encode()) < 60_000, path.name
        assert "\r" not in text, path.name
        assert "\t\t\t\t" not in text, path.name
        assert path.name.split("-")[0].split(".")[0] in {kind.name for kind in KINDS}, path.name
        if path.suffix == ".jsonl":
            for line in text.splitlines():
                roles = [message["role"] for message in json.loads(line)["messages"]]
                turns = roles[1:] if roles[0] == "system" else roles
                assert turns == ["user", "assistant"] * (len(turns) // 2), (path.name, line[:80])
    total = sum(path.stat().st_size for path in files)
    assert 150_000 < total < 260_000


def test_missing_modules_and_topics_are_left_out(monkeypatch):
    monkeypatch.setattr(builtin, "LIBRARY_MODULES", ("no_such_module", "json.decoder", "json.none"))
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    builtin._documents.cache_clear()
    try:
        kinds = Counter(document.kind for document in builtin_documents("calibration"))
        assert kinds["library"] == 1
        assert kinds["reference"] == 0
        windows = load_windows(CoarseTokenizer(), ["builtin"], 8, 64, warn=no_warning)
        assert windows.num_tokens == 512
        assert ("reference", 0) in windows.sources[0].mix
    finally:
        monkeypatch.undo()
        builtin._documents.cache_clear()


def test_incomplete_installation(monkeypatch, tmp_path):
    monkeypatch.setattr(builtin, "CORPUS", tmp_path)
    builtin._documents.cache_clear()
    try:
        with pytest.raises(DataError, match="no text of the kind prose"):
            load_windows(CoarseTokenizer(), ["builtin"], 8, 64, warn=no_warning)
    finally:
        builtin._documents.cache_clear()


def test_sources_are_read_without_running_them():
    before = set(sys.modules)
    assert "def " in (builtin._module_source("mailbox") or "")
    assert "def " in (builtin._module_source("xmlrpc.server") or "")
    assert builtin._module_source("xmlrpc.nothing") is None
    assert set(sys.modules) == before
