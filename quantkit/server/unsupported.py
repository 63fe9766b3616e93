"""Fields that clients know and this server does not act on: refused by name, never ignored.

A refused field may carry a value that asks for nothing (``tools: []``), which is accepted. A field
that nobody knows, or that asks nothing of the answer (``user``, ``metadata``), is ignored.
"""

from collections.abc import Mapping
from typing import Any

from quantkit.server.errors import ApiError
from quantkit.server.schemas import Body, ChatBody, CompletionBody, GenerationBody

_OFF: tuple[Any, ...] = (False,)
_TOOLS: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
}
_OPENAI: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": _OFF,
    "verbosity": (),
    "web_search_options": (),
    "echo": _OFF,
    "suffix": ("",),
}
_VLLM: dict[str, tuple[Any, ...]] = {
    "add_special_tokens": (),
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "chat_template": (),
    "continue_final_message": _OFF,
    "continuous_usage_stats": _OFF,
    "documents": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": _OFF,
    "length_penalty": (1, 1.0),
    "prompt_logprobs": (),
    "return_token_ids": _OFF,
    "return_tokens_as_token_ids": _OFF,
    "skip_special_tokens": (True,),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": _OFF,
}
_REQUEST: Mapping[str, tuple[Any, ...]] = {**_TOOLS, **_OPENAI, **_VLLM}
_MESSAGE: Mapping[str, tuple[Any, ...]] = {
    "tool_calls": ([],),
    "function_call": (),
    "audio": (),
    "refusal": (),
}


def refuse_unsupported(body: GenerationBody) -> None:
    """Refuse what the request asks for and would not get.

    Raises:
        ApiError: 400 naming the field.
    """
    _refuse(body, _REQUEST)
    _refuse(body, {"best_of": (body.choices,)})
    if body.stream_options is not None:
        _refuse(body.stream_options, {"continuous_usage_stats": _OFF}, "stream_options.")
    if isinstance(body, ChatBody):
        for index, message in enumerate(body.messages):
            where = f"messages[{index}]."
            if message.role in ("tool", "function"):
                raise _error(f"{where}role", f"the role {message.role!r} is not supported")
            _refuse(message, _MESSAGE, where)
    elif isinstance(body, CompletionBody):
        _refuse(body, {"messages": ()})


def _refuse(body: Body, fields: Mapping[str, tuple[Any, ...]], where: str = "") -> None:
    for name, value in (body.__pydantic_extra__ or {}).items():
        if name in fields and value is not None and value not in fields[name]:
            raise _error(where + name, "this field is not supported")


def _error(param: str, reason: str) -> ApiError:
    return ApiError(400, f"{param}: {reason}", param=param, code="unsupported_parameter")
