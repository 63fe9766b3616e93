"""A document: one text or one conversation, and how a record of a data set becomes one."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from quantkit.calibration.textfile import split_text
from quantkit.errors import DataError, QuantkitError

Message = Mapping[str, Any]

# Up to this many documents are shuffled as a whole; above it one is drawn from each of that many
# equal parts, so that the order costs no more memory.
_MAX_SHUFFLED = 1 << 20
_SPEAKERS = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}


class Tokenizer(Protocol):
    """What reading data needs of a tokenizer."""

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be rendered the model's own way."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the special tokens that the tokenizer adds."""

    def encode_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        """Token ids of a conversation, by the chat template."""


@dataclass(frozen=True)
class Document:
    """One text, or one conversation if `messages` is not empty; `where` names it in errors."""

    where: str
    text: str = ""
    messages: tuple[Message, ...] = ()

    def content(self) -> str:
        """What a digest covers."""
        if self.messages:
            return json.dumps(self.messages, ensure_ascii=False, sort_keys=True, default=str)
        return self.text


@dataclass(frozen=True)
class Draw:
    """How documents are drawn.

    Attributes:
        generator: source of the order.
        num_tokens: about how many tokens are wanted.
        seq_len: tokens per window.
        pack: whether documents are joined; otherwise each line of a text file is one.
    """

    generator: torch.Generator
    num_tokens: int
    seq_len: int
    pack: bool

    @property
    def part_chars(self) -> int:
        """Texts longer than about this are cut, so that no one text fills all windows."""
        return 8 * self.seq_len

    def order(self, count: int) -> Iterator[int]:
        """Indices below `count` in a seeded order that is spread over all of them."""
        if count <= _MAX_SHUFFLED:
            yield from torch.randperm(count, generator=self.generator).tolist()
            return
        for part in torch.randperm(_MAX_SHUFFLED, generator=self.generator).tolist():
            low = part * count // _MAX_SHUFFLED
            high = (part + 1) * count // _MAX_SHUFFLED
            yield int(torch.randint(low, high, (1,), generator=self.generator))


def record_document(record: Any, where: str) -> Document:
    """Make a document of a record with `messages` or, without those, `text`.

    Raises:
        DataError: the record has neither, or a value of the wrong kind.
    """
    hint = 'write {"text": "..."} or {"messages": [{"role": "user", "content": "..."}, ...]}'
    if not isinstance(record, Mapping):
        raise DataError(f"{where}: a record is {_kind(record)}, not an object", hint=hint)
    messages = record.get("messages")
    if messages is not None:
        _check_messages(messages, where, hint)
        return Document(where, messages=tuple(messages))
    if "text" in record or "messages" in record:
        text = record.get("text")
        if text is not None and not isinstance(text, str):
            raise DataError(f"{where}: `text` is {_kind(text)}, not a string", hint=hint)
        return Document(where, text or "")
    fields = ", ".join(sorted(map(str, record))) or "none"
    raise DataError(f"{where}: neither `text` nor `messages` (fields: {fields})", hint=hint)


def _check_messages(messages: Any, where: str, hint: str) -> None:
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise DataError(f"{where}: `messages` is no list of messages", hint=hint)
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise DataError(f"{where}: message {number} has no `role`", hint=hint)
        if message.get("content") is None and not message.get("tool_calls"):
            raise DataError(f"{where}: message {number} has no `content`", hint=hint)


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def long_last(documents: Iterable[Document], part_chars: int) -> Iterator[Document]:
    """Give the first part of every text, then, only if more is needed, the rest of the long ones.

    Conversations are never cut.
    """
    rest: list[Document] = []
    for document in documents:
        first, *others = split_text(document.text, part_chars)
        yield Document(document.where, first, document.messages)
        rest.extend(Document(document.where, part) for part in others)
    yield from rest


def plain_dialogue(messages: Sequence[Message]) -> str:
    """Render a conversation as lines of `User: ...` and `Assistant: ...`."""
    turns: list[str] = []
    for message in messages:
        role = str(message["role"])
        content = message.get("content")
        if content is None:
            content = json.dumps(message.get("tool_calls"), ensure_ascii=False, default=str)
        elif not isinstance(content, str):
            content = "".join(str(p.get("text", "")) for p in content if isinstance(p, Mapping))
        turns.append(f"{_SPEAKERS.get(role, role.capitalize())}: {content}")
    return "\n".join(turns) + "\n"


def encode_document(document: Document, tokenizer: Tokenizer) -> list[int]:
    """Token ids of a document; none for a text of blanks.

    Raises:
        DataError: the chat template refuses the conversation.
    """
    if not document.messages:
        return tokenizer.encode(document.text) if document.text.strip() else []
    if not tokenizer.has_chat_template:
        return tokenizer.encode(plain_dialogue(document.messages))
    try:
        return tokenizer.encode_chat([_without_nulls(each) for each in document.messages])
    except QuantkitError as error:
        raise DataError(f"{document.where}: {error.message}", hint=error.hint) from error


def _without_nulls(message: Message) -> dict[str, Any]:
    """Drop the fields that only exist because other records of a table have them."""
    return {key: value for key, value in message.items() if value is not None or key == "content"}
