"""From messages and texts to token ids, off the event loop."""

import asyncio
from collections.abc import Sequence

from quantkit.errors import DataError
from quantkit.server.errors import ApiError
from quantkit.server.schemas import ChatBody, CompletionBody, GenerationBody, TokenizeBody
from quantkit.server.state import Service


async def chat_text(service: Service, body: ChatBody | TokenizeBody) -> str:
    """A conversation as the chat template writes it.

    Raises:
        ApiError: 400 with the template's own words, or when there is no template.
    """
    if service.renderer is None:
        raise ApiError(
            400,
            "the model has no chat template; use /v1/completions or start with --chat-template",
            param="messages",
            code="no_chat_template",
        )
    messages = [message.as_template_input() for message in body.messages or ()]
    opening = body.add_generation_prompt if isinstance(body, TokenizeBody) else True
    try:
        text = await service.renderer.render(
            messages, body.chat_template_kwargs or {}, add_generation_prompt=opening
        )
        text.encode()
    except DataError as error:
        raise ApiError(400, error.message, param="messages", code="chat_template_error") from None
    except UnicodeEncodeError:
        raise ApiError(
            400, "chat_template_kwargs: unpaired surrogate", param="chat_template_kwargs"
        ) from None
    return text


async def chat_ids(service: Service, body: ChatBody | TokenizeBody) -> list[int]:
    """Ids of a conversation. The template writes its own start token, so none is added."""
    return await encode(service, await chat_text(service, body), special=False)


async def completion_ids(service: Service, body: CompletionBody) -> list[list[int]]:
    """Ids of each prompt: what the tokenizer makes of a text, or the ids as they were sent.

    Raises:
        ApiError: 400 for an id outside the vocabulary.
    """
    prompts = []
    for prompt in body.prompts:
        if isinstance(prompt, str):
            prompts.append(await encode(service, prompt))
        else:
            check_ids(service, prompt, "prompt")
            prompts.append(prompt)
    return prompts


async def encode(service: Service, text: str, *, special: bool = True) -> list[int]:
    """Ids of a text; the tokenizer works without the interpreter lock, so a thread suffices."""
    return await asyncio.to_thread(service.tokenizer.encode, text, special=special)


def check_ids(service: Service, ids: Sequence[int], param: str) -> None:
    """Check token ids that a client sent.

    Raises:
        ApiError: 400 naming the first id outside the vocabulary.
    """
    for token in ids:
        if token >= service.vocab_size:
            raise ApiError(
                400,
                f"{param}: token id {token} is outside the vocabulary of {service.vocab_size}",
                param=param,
                code="invalid_value",
            )


def room_for_answer(service: Service, ids: Sequence[int], body: GenerationBody) -> int:
    """Tokens that fit behind a prompt, at least one.

    Raises:
        ApiError: 400 when the prompt is empty, or fills the context so that no token fits.
    """
    param = "messages" if isinstance(body, ChatBody) else "prompt"
    if not ids:
        raise ApiError(400, f"{param}: no tokens", param=param, code="invalid_value")
    room = service.max_model_len - len(ids)
    if room < 1:
        raise ApiError(
            400,
            f"the prompt has {len(ids)} tokens and the context holds {service.max_model_len}, "
            "of which the answer needs at least one",
            param=param,
            code="context_length_exceeded",
        )
    return room
