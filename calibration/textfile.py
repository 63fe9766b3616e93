"""Plain text from files: UTF-8 whatever the locale, and at most a bounded part of a large file.

Rule for large files: a file up to the budget is read whole. Of a larger one, evenly spaced pieces
of 1 MiB that together make up the budget are read: the lines that begin within each MiB. Where a
piece begins follows from the size alone. A line above `line_bytes` is cut between characters.
"""

import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from quantkit.errors import DataError

PIECE_BYTES = 1 << 20
DEFAULT_BUDGET_BYTES = 32 << 20

_UTF8_BOM = b"\xef\xbb\xbf"
# UTF-32 LE begins with the UTF-16 LE mark, so the longer mark is asked first.
_OTHER_BOMS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_BLANK_RUN = re.compile(r"\n(?:[^\S\n]*\n)+")


@dataclass(frozen=True)
class Piece:
    """A run of characters of one file; `start_bytes` is where it begins."""

    path: Path
    start_bytes: int
    text: str

    def where(self, line: int) -> str:
        """Name line `line` (from 0) of this piece for an error message."""
        if self.start_bytes == 0:
            return f"{self.path}, line {line + 1}"
        return f"{self.path}, line {line + 1} after byte {self.start_bytes}"


def read_pieces(
    path: Path, budget_bytes: int = DEFAULT_BUDGET_BYTES, line_bytes: int = 1 << 16
) -> list[Piece]:
    """Read a UTF-8 file, or evenly spaced pieces of it when it is larger than `budget_bytes`.

    A byte order mark is dropped and line ends become "\\n".

    Raises:
        DataError: the file cannot be read, is not UTF-8 or holds NUL bytes.
    """
    try:
        info = path.stat()
        with path.open("rb") as file:
            if not stat.S_ISREG(info.st_mode) or info.st_size <= budget_bytes:
                raw = [(0, file.read())]
            else:
                num_pieces = max(2, budget_bytes // PIECE_BYTES)
                gap_bytes = (info.st_size - PIECE_BYTES) // (num_pieces - 1)
                raw = [_read_lines(file, i * gap_bytes, line_bytes) for i in range(num_pieces)]
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    return [Piece(path, start, _decode(path, start, data)) for start, data in raw]


def squeeze_blank_lines(text: str) -> str:
    """Make every run of blank lines one empty line, and drop those at the beginning."""
    squeezed: str = _BLANK_RUN.sub("\n\n", "\n" + text)
    return squeezed.lstrip("\n")


def split_text(text: str, size: int) -> list[str]:
    """Cut a text into parts of at most about `size` characters, which joined give the text.

    A cut falls after the last empty line, else line end, else blank, else character, of the second
    half of the part. A last part under a quarter of `size` stays with the one before.
    """
    parts: list[str] = []
    start = 0
    while len(text) - start > size + size // 4:
        end = start + size
        for mark in ("\n\n", "\n", " "):
            found = text.rfind(mark, start + size // 2, end)
            if found >= 0:
                end = found + len(mark)
                break
        parts.append(text[start:end])
        start = end
    parts.append(text[start:])
    return parts


def _read_lines(file: BinaryIO, start: int, line_bytes: int) -> tuple[int, bytes]:
    """The lines that begin within PIECE_BYTES after `start`, and where the first one does."""
    file.seek(start)
    skipped = file.readline(line_bytes) if start > 0 else b""
    body = file.read(PIECE_BYTES - len(skipped)) if len(skipped) < PIECE_BYTES else b""
    if body:
        body += file.readline(line_bytes)
    data = skipped + body
    # Only a line that was cut can leave part of a character at either end.
    begin = len(skipped)
    is_cut = start > 0 and not skipped.endswith(b"\n")
    while is_cut and begin < len(data) and data[begin] & 0xC0 == 0x80:
        begin += 1
    return start + begin, data[begin : _whole_characters(data)]


def _whole_characters(data: bytes) -> int:
    """How many bytes of `data` remain without a last UTF-8 character that is not complete."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            size = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) if back >= size else len(data) - back
    return len(data)


def _decode(path: Path, start: int, data: bytes) -> str:
    if start == 0:
        for mark, name in _OTHER_BOMS.items():
            if data.startswith(mark):
                raise DataError(
                    f"{path}: is {name} text, byte offset 0; only UTF-8 is read",
                    hint=f"convert it: iconv -f {name} -t UTF-8 {path.name} > utf8-{path.name}",
                )
        if data.startswith(_UTF8_BOM):
            start, data = len(_UTF8_BOM), data[len(_UTF8_BOM) :]
    zero = data.find(b"\0")
    if zero >= 0:
        raise _bad_byte(path, start + zero, "a NUL byte")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"byte 0x{data[error.start]:02x}, which is not UTF-8"
        raise _bad_byte(path, start + error.start, what) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _bad_byte(path: Path, offset: int, what: str) -> DataError:
    line = 1
    with path.open("rb") as file:
        left = offset
        while left > 0 and (block := file.read(min(left, PIECE_BYTES))):
            line += block.count(b"\n")
            left -= len(block)
    return DataError(
        f"{path}, line {line}, byte offset {offset}: {what}",
        hint="give plain UTF-8 text, JSONL or Parquet; iconv -f LATIN1 -t UTF-8 converts Latin-1",
    )
