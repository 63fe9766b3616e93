"""Tokenizer of a checkpoint: ids, special tokens and chat template from its companion files.

It reads tokenizer.json itself, since transformers' AutoTokenizer may replace parts of it by what
the model type suggests.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import tokenizers

from quantkit.core.chat import ChatTemplate
from quantkit.core.config import id_list
from quantkit.errors import DataError, ModelError

_SPECIAL = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)


class HasCompanions(Protocol):
    """What a tokenizer is read from: a Checkpoint."""

    @property
    def path(self) -> Any:
        """Where it lies, for messages."""

    @property
    def config(self) -> Mapping[str, Any]:
        """config.json."""

    @property
    def companion_reader(self) -> Any:
        """Returns file name -> bytes."""


class Tokenizer:
    """Text to token ids and back.

    Attributes:
        eos_ids: every id that ends a generation: generation_config, config and tokenizer together.
        special: ``bos_token`` and the like as text.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        settings: Mapping[str, Any],
        template: str | None,
        eos_ids: Sequence[int] = (),
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.special = {key: text for key in _SPECIAL if (text := _token_text(settings.get(key)))}
        self._add_bos = settings.get("add_bos_token")
        self._template_source = template
        eos = self.special.get("eos_token")
        own = backend.token_to_id(eos) if eos is not None else None
        self.eos_ids = tuple(dict.fromkeys([*eos_ids, *([] if own is None else [own])]))

    @classmethod
    def from_checkpoint(cls, checkpoint: HasCompanions) -> "Tokenizer":
        """Read the tokenizer that travels with a checkpoint.

        Raises:
            ModelError: there is none, or it is damaged.
        """
        files = checkpoint.companion_reader()
        where = checkpoint.path
        settings = _read_json(files, "tokenizer_config.json", where)
        generation = _read_json(files, "generation_config.json", where)
        if "tokenizer.json" in files:
            try:
                backend = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode("utf-8"))
            except Exception as error:  # tokenizers raises bare Exception for damaged files
                raise ModelError(f"{where}: tokenizer.json is damaged: {error}") from None
        elif "tokenizer.model" in files:
            backend = _from_sentencepiece(files, where)
        else:
            raise ModelError(
                f"{where} has no tokenizer.json",
                hint="copy the tokenizer files of the original model into the folder",
            )
        eos = id_list(generation.get("eos_token_id")) or id_list(
            checkpoint.config.get("eos_token_id")
        )
        return cls(
            backend, settings=settings, template=_find_template(files, settings), eos_ids=eos
        )

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a text; ``special`` adds what the tokenizer itself adds (a start token)."""
        return list(self.backend.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Text of token ids."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special))

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    @property
    def has_chat_template(self) -> bool:
        """Whether the model brings a chat template."""
        return self._template_source is not None

    @property
    def template_source(self) -> str | None:
        """Jinja text of the chat template, not compiled; None when the model has none."""
        return self._template_source

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The compiled chat template.

        Raises:
            DataError: the model has none.
            ModelError: it has a syntax error.
        """
        if self._template_source is None:
            raise DataError(
                "the model has no chat template", hint="use plain completions, or --chat-template"
            )
        return ChatTemplate(self._template_source, self.special)

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False
    ) -> str:
        """Text of a conversation, see ``ChatTemplate.render``."""
        return self.chat_template.render(messages, add_generation_prompt=add_generation_prompt)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False
    ) -> list[int]:
        """Ids of a conversation. The template writes its own start token, so none is added."""
        text = self.render_chat(messages, add_generation_prompt=add_generation_prompt)
        return self.encode(text, special=False)


def _token_text(value: Any) -> str | None:
    """Text of a special token, which configs hold as a string or as {"content": ...}."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _read_json(files: Mapping[str, bytes], name: str, where: Any) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        value = json.loads(files[name].decode("utf-8-sig"))
    except ValueError as error:
        raise ModelError(f"{where}: {name} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{where}: {name} does not hold an object")
    return value


def _find_template(files: Mapping[str, bytes], settings: Mapping[str, Any]) -> str | None:
    if "chat_template.jinja" in files:
        return files["chat_template.jinja"].decode("utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named templates
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _from_sentencepiece(files: Mapping[str, bytes], where: Any) -> tokenizers.Tokenizer:
    """Convert a bare sentencepiece model through transformers."""
    import tempfile
    from pathlib import Path

    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            if name.startswith("tokenizer") or name in ("config.json", "special_tokens_map.json"):
                (Path(folder) / name).write_bytes(data)
        try:
            fast = AutoTokenizer.from_pretrained(folder)
            return fast.backend_tokenizer
        except (OSError, ValueError, ImportError, AttributeError) as error:
            raise ModelError(
                f"{where}: tokenizer.model cannot be converted: {error}",
                hint="save the model's tokenizer.json beside it",
            ) from None
