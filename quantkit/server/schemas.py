"""Request bodies: OpenAI's fields and vLLM's extras, with strict types and ranges.

Values are strict: a wrong type or range is an error that names the field. Unknown fields are
ignored; fields that are known but not supported are refused (``unsupported.py``).
"""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from quantkit.runtime.request import MAX_LOGPROBS, MAX_STOPS

MAX_CHOICES = 128
MAX_BIASES = 1024
MAX_BIAS = 100.0
TEMPLATE_INPUTS = {"self", "messages", "tools", "documents", "add_generation_prompt"}
MAX_INT = 2**31 - 1


def fault(param: str, reason: str) -> PydanticCustomError:
    """A problem of one field, found where several are looked at together."""
    return PydanticCustomError("field_fault", "{reason}", {"param": param, "reason": reason})


def _whole_unicode(text: str) -> str:
    """JSON can spell half of a surrogate pair, which is no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("the text holds an unpaired surrogate") from None
    return text


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _read_biases(value: Any) -> Any:
    """JSON keys are strings; token ids are plain decimal numbers."""
    if not isinstance(value, dict):
        return value
    biases = {}
    for key, bias in value.items():
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10):
            raise ValueError(f"{key!r} is not a token id")
        if type(bias) not in (int, float) or not -MAX_BIAS <= bias <= MAX_BIAS:
            raise ValueError(f"the bias of token {key} must be a number from -100 to 100")
        biases[int(key)] = float(bias)
    return biases


def _free_names(variables: dict[str, Any]) -> dict[str, Any]:
    """Variables of a chat template may not take the place of its own inputs."""
    for name in variables:
        if name in TEMPLATE_INPUTS:
            raise ValueError(f"{name!r} cannot be set this way")
    return variables


def _prompt_kind(value: Any) -> str | None:
    """Tag of a prompt by its first item; the tagged type then checks the rest."""
    if isinstance(value, str):
        return "as_text"
    if not isinstance(value, list) or not value:
        return None
    kinds = {str: "as_texts", int: "as_ids", list: "as_id_lists"}
    return kinds.get(type(value[0]))


def _content_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "as_text"
    return "as_parts" if isinstance(value, list) else None


TemplateVariables = Annotated[dict[str, Any], AfterValidator(_free_names)]
Text = Annotated[str, AfterValidator(_whole_unicode)]
Flag = bool | None
TokenId = Annotated[int, Field(ge=0, le=MAX_INT)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Penalty = Annotated[Finite, Field(ge=-2, le=2)]
StopStrings = Annotated[
    list[Text],
    BeforeValidator(_listed, json_schema_input_type=str | list[str]),
    Field(max_length=MAX_STOPS),
]
Biases = Annotated[
    dict[int, float],
    BeforeValidator(_read_biases, json_schema_input_type=dict[str, float]),
    Field(max_length=MAX_BIASES),
]
IdList = Annotated[list[TokenId], Field(min_length=1)]


class Body(BaseModel):
    """Strict values; fields that are not declared are kept aside for ``unsupported.py``."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: Flag = None


class GenerationBody(Body):
    """What chat and plain completions share."""

    model: str | None = None
    stream: Flag = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    stop: StopStrings | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    temperature: Annotated[Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Biases | None = None
    user: str | None = None

    top_k: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    min_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Finite, Field(gt=0, le=100)] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: Flag = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> "GenerationBody":
        if self.stream_options is not None and not self.stream:
            raise fault("stream_options", "only allowed when stream is true")
        return self

    @property
    def choices(self) -> int:
        """Answers wanted for each prompt."""
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ContentPart(Body):
    """One part of a message; text is the only kind."""

    type: str
    text: Text | None = None

    @model_validator(mode="after")
    def _is_text(self) -> "ContentPart":
        if self.type != "text":
            raise fault("type", f"parts of type {self.type!r} are not supported, only 'text'")
        if self.text is None:
            raise fault("text", "this field is required")
        return self


class Message(Body):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[
        Annotated[Text, Tag("as_text")] | Annotated[list[ContentPart], Tag("as_parts")],
        Discriminator(
            _content_kind,
            custom_error_type="content_type",
            custom_error_message="Input should be a string or a list of text parts",
        ),
    ]
    name: Text | None = None
    reasoning_content: Text | None = None

    def as_template_input(self) -> dict[str, Any]:
        """The dictionary that chat templates read; text parts are joined by line ends."""
        content = self.content
        if not isinstance(content, str):
            content = "\n".join(part.text for part in content if part.text is not None)
        message: dict[str, Any] = {"role": self.role, "content": content}
        for key in ("name", "reasoning_content"):
            if (value := getattr(self, key)) is not None:
                message[key] = value
        return message


class ChatBody(GenerationBody):
    """Body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    logprobs: Flag = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    chat_template_kwargs: TemplateVariables | None = None

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> "ChatBody":
        if self.top_logprobs and not self.logprobs:
            raise fault("top_logprobs", "needs logprobs to be true")
        return self


class CompletionBody(GenerationBody):
    """Body of /v1/completions."""

    prompt: Annotated[
        Annotated[Text, Tag("as_text")]
        | Annotated[list[Text], Tag("as_texts")]
        | Annotated[IdList, Tag("as_ids")]
        | Annotated[list[IdList], Tag("as_id_lists")],
        Discriminator(
            _prompt_kind,
            custom_error_type="prompt_type",
            custom_error_message=(
                "Input should be a string, a list of strings, a list of token ids "
                "or a list of such lists, and not empty"
            ),
        ),
    ]
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts one by one."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if isinstance(prompt[0], int):
            return [prompt]
        return prompt


class TokenizeBody(Body):
    """Body of /tokenize: a text or a conversation."""

    model: str | None = None
    prompt: Text | None = None
    add_special_tokens: bool = True
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: TemplateVariables | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> "TokenizeBody":
        if (self.prompt is None) == (self.messages is None):
            raise fault("prompt", "give either prompt or messages")
        return self


class DetokenizeBody(Body):
    """Body of /detokenize."""

    model: str | None = None
    tokens: list[TokenId]


BODIES = (
    ChatBody,
    CompletionBody,
    TokenizeBody,
    DetokenizeBody,
    Message,
    ContentPart,
    StreamOptions,
)
FIELDS = frozenset(name for body in BODIES for name in body.model_fields)
