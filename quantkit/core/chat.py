"""Chat templates: sandboxed rendering of messages to the text that a model was trained on."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.sandbox
from jinja2.ext import loopcontrols

from quantkit.errors import DataError, ModelError

MAX_RENDERED_CHARS = 4_000_000
# What an expression of a template can raise.
_FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RuntimeError,  # RecursionError among them
)


class ChatTemplate:
    """One compiled template.

    Args:
        source: Jinja text, as in ``chat_template.jinja``.
        special: values of ``bos_token``, ``eos_token`` and so on.

    Raises:
        ModelError: the template has a syntax error; the message names the line.
    """

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self.source = source
        self._special = dict(special)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(
                f"chat template, line {error.lineno}: {error.message}",
                hint="give a working template with --chat-template",
            ) from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Text of a conversation.

        Args:
            messages: dictionaries with ``role`` and ``content``.
            add_generation_prompt: end with the opening of the assistant's turn.
            tools: tool descriptions, passed to the template.
            variables: further template variables (``chat_template_kwargs``).

        Raises:
            DataError: the template refused the messages (its own words) or failed on them.
        """
        values = {
            **self._special,
            **variables,
            "messages": list(messages),
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        parts, length = [], 0
        try:
            for part in self._template.generate(values):
                parts.append(part)
                length += len(part)
                if length > MAX_RENDERED_CHARS:
                    raise DataError(
                        f"the chat template wrote more than {MAX_RENDERED_CHARS} characters"
                    )
        except _Refused as refused:
            raise DataError(f"the chat template refused the messages: {refused}") from None
        except (OverflowError, MemoryError):
            raise DataError("the chat template ran out of bounds") from None
        except _FAILURES as error:
            raise DataError(f"the chat template failed on the messages: {error}") from None
        return "".join(parts)


class _Refused(Exception):
    """Raised by a template through ``raise_exception``."""


def _raise_exception(message: str) -> NoReturn:
    raise _Refused(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    # Jinja's own filter escapes HTML characters, which models never saw.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
