"""Log-probabilities in OpenAI's two styles.

A token that is only part of a character is written as OpenAI writes it, ``\\xe2\\x82`` (with the
prefix ``bytes:`` in plain completions); the exact bytes are in ``bytes``. JSON has no infinity, so
a log-probability below -9999 is given as -9999.
"""

import codecs
import re
from collections.abc import Sequence
from typing import Any

from quantkit.core.tokenizer import Tokenizer
from quantkit.runtime.request import TokenLogprob

FLOOR = -9999.0
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_of_char() -> dict[str, int]:
    """The printable stand-ins of byte-level BPE (Radford et al., 2019), reversed."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    chars = {chr(byte): byte for byte in printable}
    return chars | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_of_char()


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """What one token contributes to a text, as bytes."""
    piece = tokenizer.backend.id_to_token(token_id)
    if piece is None:  # padding of the embedding matrix
        return b""
    if match := _BYTE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    text = tokenizer.decode([token_id])
    if "\N{REPLACEMENT CHARACTER}" in text and all(char in _BYTES for char in piece):
        return bytes(_BYTES[char] for char in piece)
    if piece.startswith("\u2581"):  # decoders drop this space at the start of a text
        text = piece.replace("\u2581", " ")
    return text.encode()


def _shown(raw: bytes, prefix: str = "") -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in raw)


def _number(logprob: float) -> float:
    return logprob if logprob > FLOOR else FLOOR


class ChatLogprobs:
    """Builds ``choices[].logprobs`` of chat answers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def add(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The next tokens of the answer."""
        content = [
            {
                **self._entry(token.token_id, token.logprob),
                "top_logprobs": [self._entry(*pair) for pair in token.top],
            }
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = token_bytes(self._tokenizer, token_id)
        return {"token": _shown(raw), "logprob": _number(logprob), "bytes": list(raw)}


class CompletionLogprobs:
    """Builds ``choices[].logprobs`` of plain completions; it counts characters for the offsets."""

    def __init__(self, tokenizer: Tokenizer, top: int) -> None:
        self._tokenizer = tokenizer
        self._top = top
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def add(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The next tokens of the answer. The chosen one is always among the likeliest."""
        offsets, names, tops = [], [], []
        for token in tokens:
            raw = token_bytes(self._tokenizer, token.token_id)
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(raw))
            names.append(_shown(raw, "bytes:"))
            pairs = [*token.top, (token.token_id, token.logprob)]
            tops.append({self._name(token_id): _number(logprob) for token_id, logprob in pairs})
        return {
            "tokens": names,
            "token_logprobs": [_number(token.logprob) for token in tokens],
            "top_logprobs": tops if self._top else None,
            "text_offset": offsets,
        }

    def _name(self, token_id: int) -> str:
        return _shown(token_bytes(self._tokenizer, token_id), "bytes:")
