"""Models from a hub, which a server on this machine plays."""

import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch

from quantkit.errors import ModelError
from quantkit.formats import open_model
from quantkit.formats.complete import check_complete
from tests.helpers.folders import COMPANIONS, float_tensors, write_folder


class FakeHub(BaseHTTPRequestHandler):
    """Answers what a snapshot download asks for."""

    commit = "1234567890123456789012345678901234567890"
    files: dict[str, bytes]
    fetched: list[str]

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: Any) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        known = ("main", "v1", self.commit)
        if path.startswith("/api/models/org/gated"):
            return self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
        if not path.startswith(("/api/models/org/name", "/org/name")):
            return self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        if match := re.fullmatch(r"/api/models/org/name(?:/revision/([^/]+))?", path):
            if match[1] not in (None, *known):
                return self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
            siblings = [{"rfilename": name} for name in self.files]
            return self._json({"id": "org/name", "sha": self.commit, "siblings": siblings})
        if re.fullmatch(r"/api/models/org/name/tree/[^/]+/?", path):
            return self._json(
                [
                    {"type": "file", "path": n, "size": len(d), "oid": hashlib.sha1(d).hexdigest()}
                    for n, d in self.files.items()
                ]
            )
        if match := re.fullmatch(r"/org/name/resolve/([^/]+)/(.+)", path):
            data = self.files[match[2]]
            if self.command == "GET":
                self.fetched.append(match[2])
            headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": self.commit}
            return self._answer(200, data, headers)
        return self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeHub]]:
    folder = write_folder(tmp_path / "model", float_tensors())
    FakeHub.files = {path.name: path.read_bytes() for path in folder.iterdir()}
    FakeHub.files |= {
        "pytorch_model.bin": b"pickle",
        "modeling_evil.py": b"import os",
        "consolidated.safetensors": b"again",
        "onnx/config.json": b"{}",
        "README.md": b"# card",
        ".gitattributes": b"",
    }
    FakeHub.fetched = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    yield FakeHub
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("revision", [None, "v1", FakeHub.commit])
def test_snapshot_of_a_hub_model(hub: type[FakeHub], revision: str | None) -> None:
    opened = open_model("org/name", revision=revision)
    assert set(opened.tensors) == set(float_tensors())
    assert torch.equal(opened.load_float("lm_head.weight"), float_tensors()["lm_head.weight"])
    assert check_complete(opened) == ()
    assert opened.companion_reader() == {**COMPANIONS, "README.md": b"# card"}
    wanted = {"model.safetensors", "config.json", "README.md", *COMPANIONS}
    assert set(hub.fetched) == wanted
    assert opened.path.name == FakeHub.commit


def test_second_opening_uses_the_cache(hub: type[FakeHub], monkeypatch: pytest.MonkeyPatch) -> None:
    open_model("org/name")
    count = len(hub.fetched)
    open_model("org/name")
    assert len(hub.fetched) == count
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert open_model("org/name").format == "hf"


@pytest.mark.parametrize(
    ("ref", "revision", "words"),
    [
        ("org/other", None, ["org/other", "neither a folder here nor a model on the hub"]),
        ("org/name", "v9", ["org/name", "no revision 'v9'"]),
        ("org/gated", None, ["org/gated", "must be asked for"]),
    ],
)
def test_what_the_hub_refuses(
    hub: type[FakeHub], ref: str, revision: str | None, words: list[str]
) -> None:
    with pytest.raises(ModelError) as caught:
        open_model(ref, revision=revision)
    assert all(word in caught.value.message for word in words), caught.value.message
    assert "\n" not in caught.value.message


def test_hub_model_without_safetensors(hub: type[FakeHub]) -> None:
    del hub.files["model.safetensors"], hub.files["consolidated.safetensors"]
    with pytest.raises(ModelError, match="no safetensors weights on the hub"):
        open_model("org/name")
    assert "pytorch_model.bin" not in hub.fetched


@pytest.mark.parametrize("offline", [False, True])
def test_no_hub_within_reach(
    offline: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
        start = time.perf_counter()
        with pytest.raises(ModelError, match=r"org/name is no folder here") as caught:
            open_model("org/name")
    assert time.perf_counter() - start < 5.0
    assert "\n" not in caught.value.message
    assert "local folder" in str(caught.value.hint)
