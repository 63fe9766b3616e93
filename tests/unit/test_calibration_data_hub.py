"""Data sets by name: read from a hub that the test runs itself, refused quickly without one."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import datasets
import huggingface_hub
import pytest

from quantkit.calibration.data import load_windows
from quantkit.errors import DataError

COMMIT = "a" * 40
ROWS = [{"text": f"record number {n} of the train split", "id": n} for n in range(40)]
FILES = {
    "data/train.jsonl": "\n".join(map(json.dumps, ROWS)).encode(),
    "data/test.jsonl": json.dumps({"text": "the only record of the test split"}).encode(),
}


class TinyHub(BaseHTTPRequestHandler):
    """As much of the hub's protocol as reading the data set me/tiny takes."""

    def log_message(self, format: str, *args: object) -> None:
        return None

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/":
            self.answer(200, b"{}")
        elif url.path.startswith("/api/datasets/me/tiny/tree/"):
            folder = url.path.split("/tree/")[1].partition("/")[2]
            if not folder and parse_qs(url.query).get("recursive") == ["false"]:
                rows = [{"type": "directory", "path": "data", "oid": "b" * 40}]
            else:
                rows = [self.entry(name) for name in FILES if name.startswith(folder)]
            self.answer(200, json.dumps(rows).encode())
        elif url.path.startswith("/api/datasets/me/tiny"):
            siblings = [{"rfilename": name} for name in FILES]
            info = {"id": "me/tiny", "sha": COMMIT, "siblings": siblings, "tags": []}
            self.answer(200, json.dumps(info).encode())
        elif "/me/tiny/resolve/" in url.path:
            self.send_file(url.path.split("/resolve/")[1].partition("/")[2])
        else:
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        paths = json.loads(body)["paths"] if body[:1] == b"{" else parse_qs(body.decode())["paths"]
        rows = [self.entry(name) for name in paths if name in FILES]
        self.answer(200, json.dumps(rows).encode())

    def entry(self, name: str) -> dict[str, object]:
        oid = hashlib.sha1(FILES[name]).hexdigest()
        return {"type": "file", "path": name, "size": len(FILES[name]), "oid": oid}

    def send_file(self, name: str) -> None:
        if name not in FILES:
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        data = FILES[name]
        headers = {"ETag": f'"{self.entry(name)["oid"]}"', "X-Repo-Commit": COMMIT}
        wanted = self.headers.get("Range")
        if wanted is None:
            self.answer(200, data, headers)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        end = min(int(last or len(data) - 1), len(data) - 1)
        headers["Content-Range"] = f"bytes {first}-{end}/{len(data)}"
        self.answer(206, data[int(first) : end + 1], headers)


@pytest.fixture
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), TinyHub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# The address of the hub is fixed when the library is imported, so it takes a process of its own.
_SCRIPT = """
import json, sys
from quantkit.calibration.data import load_windows
from quantkit.errors import QuantkitError

class Bytes:
    has_chat_template = False
    def encode(self, text): return list(text.encode())
    def encode_chat(self, messages): raise AssertionError

for name, split in json.loads(sys.argv[1]):
    try:
        windows = load_windows(
            Bytes(), [name], 50, 64, pack=False, split=split, warn=lambda line: None)
        rows = zip(windows.ids, windows.docs)
        print(json.dumps([bytes(i[d >= 0].tolist()).decode() for i, d in rows]))
    except QuantkitError as error:
        print(json.dumps([error.exit_code, error.message, error.hint]))
"""


def read(endpoint: str, home: Path, *names: tuple[str, str], **settings: str) -> list[list]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.lower().endswith("_proxy") and not name.startswith("HF_")
    }
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, json.dumps(names)],
        env=kept
        | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), **settings}
        | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_named_data_sets(endpoint, tmp_path):
    train, test, named, no_split, no_config, nothing = read(
        endpoint,
        tmp_path,
        ("me/tiny", "calibration"),
        ("me/tiny", "evaluation"),
        ("me/tiny:default:test", "calibration"),
        ("me/tiny::valid", "calibration"),
        ("me/tiny:other", "calibration"),
        ("me/nothing", "calibration"),
    )
    assert sorted(train) == sorted(row["text"] for row in ROWS)
    assert train != [row["text"] for row in ROWS]
    assert test == named == ["the only record of the test split"]
    assert no_split[:2] == [3, "me/tiny::valid: no split 'valid' (there are train, test)"]
    assert no_config[0] == nothing[0] == 3
    assert "me/tiny:other: this data set cannot be loaded" in no_config[1]
    assert "me/nothing: this data set cannot be loaded" in nothing[1]
    assert "local text" in nothing[2]


class Nothing:
    has_chat_template = False

    def encode(self, text: str) -> list[int]:
        return []

    def encode_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        return []


def test_without_a_hub_the_local_files_are_named(monkeypatch):
    # Port 9 of this machine: nothing listens there.
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    start = time.monotonic()
    with pytest.raises(DataError) as caught:
        load_windows(Nothing(), ["wikitext"], 1, 8, warn=pytest.fail)
    assert time.monotonic() - start < 10
    message = caught.value.message
    assert "wikitext: no such file, and http://127.0.0.1:9 cannot be reached" in message
    assert "local text" in (caught.value.hint or "")


def test_offline_nothing_is_asked(monkeypatch):
    attempts = []

    def refuse(*args: object) -> None:
        attempts.append(args)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="wikitext: this data set cannot be loaded") as caught:
        load_windows(Nothing(), ["wikitext"], 1, 8, warn=pytest.fail)
    assert "local text" in (caught.value.hint or "")
    assert attempts == []
