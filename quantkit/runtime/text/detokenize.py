"""Tokens to text, one at a time, without ever showing half a character."""

from collections.abc import Sequence

import tokenizers

_BROKEN = "\ufffd"
_CONTEXT = 5
"""Tokens of the prompt that the first new token is decoded behind."""

_LONGEST_CHARACTER = 4
"""Bytes of the longest UTF-8 character; a token that is text has at least one."""


def special_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    """Ids of the special tokens, which have no text."""
    added = backend.get_added_tokens_decoder()
    return frozenset(token for token, entry in added.items() if entry.special)


class Detokenizer:
    """Streams the text of one sequence.

    New tokens are decoded together with the few before them, since decoders treat the start of a
    text specially, and the part that is new goes out. Text that ends with an incomplete character
    waits for the next token. Special tokens are skipped. Decoders of byte tokens may change their
    mind about text that is out already when invalid bytes follow it; such bytes are then decoded by
    themselves (tokenizers' own DecodeStream raises there, and has no way to end a text).

    Args:
        backend: the tokenizer.
        special: its ``special_ids``.
        prompt_ids: the prompt; only its end is used.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special: frozenset[int],
        prompt_ids: Sequence[int] = (),
    ) -> None:
        self._backend = backend
        self._special = special
        context = [i for i in prompt_ids[-_CONTEXT:] if self._is_text(i)]
        while context and _BROKEN in self._decode(context):
            del context[0]  # starts inside a character
        self._context = context
        self._new: list[int] = []
        self._shown = self._decode(context)  # what of context + new is out

    def push(self, token_id: int) -> str:
        """Read a token; returns the text that is settled by it, often none."""
        if not self._is_text(token_id):
            return ""
        self._new.append(token_id)
        text = self._decode(self._context + self._new)
        if not text.endswith(_BROKEN):
            delta = self._delta(text)
            self._context, self._new = self._new, []
            self._shown = self._decode(self._context)
            return delta
        if len(self._new) <= _LONGEST_CHARACTER:
            return ""
        # Too long for one character, so all but the last sign stands for invalid bytes.
        delta = self._delta(text[: -len(_BROKEN)])
        self._context, self._new = [], self._new[-_LONGEST_CHARACTER:]
        self._shown = self._decode(self._new)[: -len(_BROKEN)]
        return delta

    def flush(self) -> str:
        """What is left at the end. An incomplete last character is dropped, not shown broken."""
        if not self._new:
            return ""
        text = self._decode(self._context + self._new)
        self._context, self._new, shown = [], [], self._shown
        rest = text[len(shown) :] if text.startswith(shown) else ""
        return rest.rstrip(_BROKEN)

    def _delta(self, text: str) -> str:
        if text.startswith(self._shown):
            return text[len(self._shown) :]
        return self._decode(self._new)

    def _is_text(self, token_id: int) -> bool:
        """Whether the token has text: not special, and known to the tokenizer."""
        return token_id not in self._special and self._backend.id_to_token(token_id) is not None

    def _decode(self, ids: list[int]) -> str:
        return str(self._backend.decode(ids, skip_special_tokens=True)) if ids else ""
