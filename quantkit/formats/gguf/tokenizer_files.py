"""What the tokenizer files of a Hugging Face folder say, read from their bytes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from quantkit.core.tokenizer import Tokenizer
from quantkit.errors import ModelError

_USED = {
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja", "generation_config.json",
    "added_tokens.json", "vocab.json", "merges.txt",  # repeat what tokenizer.json says
    "README.md",  # describes a folder
}  # fmt: skip


@dataclass(frozen=True)
class TokenizerFiles:
    """Contents of the files, with empty ones for what is missing.

    Attributes:
        tokenizer: tokenizer.json, None when the model has no tokenizer.
        settings: tokenizer_config.json over special_tokens_map.json.
        generation: generation_config.json.
        template: the chat template, or None.
        unused: names of the files that GGUF has no place for.
    """

    tokenizer: dict[str, Any] | None
    settings: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)
    template: str | None = None
    unused: tuple[str, ...] = ()

    def token_text(self, name: str) -> str | None:
        """Text of a special token by its name in the settings, ``bos_token``."""
        found = self.settings.get(name)
        if isinstance(found, Mapping):
            found = found.get("content")
        return found if isinstance(found, str) else None


def read_files(files: Mapping[str, bytes]) -> TokenizerFiles:
    """Read the companion files of a model.

    Raises:
        ModelError: a file is damaged.
    """
    settings = _object(files, "special_tokens_map.json") | _object(files, "tokenizer_config.json")
    template: Any = settings.get("chat_template")
    if isinstance(template, list):  # several named ones
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    if "chat_template.jinja" in files:
        template = files["chat_template.jinja"].decode("utf-8")
    return TokenizerFiles(
        tokenizer=_tokenizer(files),
        settings=settings,
        generation=_object(files, "generation_config.json"),
        template=template if isinstance(template, str) else None,
        unused=tuple(sorted(set(files) - _USED)),
    )


def _tokenizer(files: Mapping[str, bytes]) -> dict[str, Any] | None:
    if "tokenizer.json" in files:
        return _object(files, "tokenizer.json")
    if "tokenizer.model" not in files:
        return None
    stand_in = SimpleNamespace(
        path=Path("tokenizer.model"), config={}, companion_reader=lambda: dict(files)
    )
    converted = Tokenizer.from_checkpoint(stand_in).backend.to_str()
    found: dict[str, Any] = json.loads(converted)
    return found


def _object(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        found = json.loads(files[name].decode("utf-8-sig"))
    except ValueError as error:
        raise ModelError(f"{name} is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise ModelError(f"{name} does not hold an object")
    return found
