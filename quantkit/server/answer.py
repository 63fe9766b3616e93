"""The way of a generating request, the same for chat and plain completions."""

import logging
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from fastapi.responses import JSONResponse
from starlette.requests import Request
from starlette.responses import Response

from quantkit.runtime.request import GenerationError, Output, RequestError
from quantkit.server.chat import ChatChoices
from quantkit.server.completions import CompletionChoices
from quantkit.server.errors import ApiError, unavailable
from quantkit.server.generation import Generation, Job
from quantkit.server.prompts import chat_ids, completion_ids, room_for_answer
from quantkit.server.sampling import sampling_params
from quantkit.server.schemas import ChatBody, CompletionBody, GenerationBody
from quantkit.server.state import ServerState, Service
from quantkit.server.stream import PING_SECONDS, ClientGone, EventStream, unless_gone
from quantkit.server.unsupported import refuse_unsupported

log = logging.getLogger(__name__)


class Choices(Protocol):
    """One API's shape of choices."""

    id_prefix: str
    object_name: str
    chunk_name: str

    def chunks(self, index: int, output: Output) -> Iterator[dict[str, Any]]: ...
    def whole(self, index: int, outputs: Sequence[Output]) -> dict[str, Any]: ...


async def answer(state: ServerState, request: Request, body: ChatBody | CompletionBody) -> Response:
    """Answer a request; every refusal comes before the first byte of the answer.

    Raises:
        ApiError: the request is refused or failed.
    """
    service = state.service()
    service.check_name(body.model)
    refuse_unsupported(body)
    with ExitStack() as held:
        prompts = len(body.prompts) if isinstance(body, CompletionBody) else 1
        cause = "n" if body.choices > 1 else "prompt"
        held.enter_context(state.admission.slots(prompts * body.choices, cause))
        try:
            jobs = await _jobs(service, body)
            generation = held.enter_context(state.generation(service, jobs))
        except RequestError as error:
            raise ApiError(400, error.message, param=error.field, code="invalid_value") from None
        except GenerationError as error:
            raise unavailable(error.message, "engine_stopped") from None
        choices = _choices(service, body)
        answer_id = choices.id_prefix + uuid.uuid4().hex
        head = {
            "id": answer_id,
            "object": choices.chunk_name if body.stream else choices.object_name,
            "created": int(time.time()),
            "model": service.name,
            "system_fingerprint": service.fingerprint,
        }
        if body.stream:
            events = _events(head, generation, choices, usage=body.wants_usage)
            return EventStream(events, held.pop_all(), request_id=answer_id)
        try:
            document = await unless_gone(request.receive, _document(head, generation, choices))
        except ClientGone:
            log.info("%s: the client closed the connection", answer_id)
            return Response(status_code=499)  # nobody reads it
        return JSONResponse(document, headers={"X-Request-Id": answer_id})


async def _jobs(service: Service, body: ChatBody | CompletionBody) -> list[Job]:
    """One sequence for each prompt and choice."""
    if isinstance(body, ChatBody):
        prompts = [await chat_ids(service, body)]
    else:
        prompts = await completion_ids(service, body)
    jobs = []
    for ids in prompts:
        room = room_for_answer(service, ids, body)
        for choice in range(body.choices):
            params = sampling_params(body, service.defaults, choice, room)
            params.check_vocab(service.vocab_size)
            jobs.append(Job(ids, params, choice))
    return jobs


def _choices(service: Service, body: GenerationBody) -> Choices:
    if isinstance(body, ChatBody):
        return ChatChoices(service.tokenizer, logprobs=bool(body.logprobs))
    assert isinstance(body, CompletionBody)
    return CompletionChoices(service.tokenizer, logprobs=body.logprobs)


async def _document(
    head: dict[str, Any], generation: Generation, choices: Choices
) -> dict[str, Any]:
    """The answer in one piece."""
    parts: dict[int, list[Output]] = {}
    async for item in generation.outputs():
        if item is not None:
            parts.setdefault(item[0], []).append(item[1])
    whole = [choices.whole(index, outputs) for index, outputs in sorted(parts.items())]
    return {**head, "choices": whole, "usage": generation.usage()}


async def _events(
    head: dict[str, Any], generation: Generation, choices: Choices, *, usage: bool
) -> AsyncIterator[dict[str, Any] | None]:
    """The answer as chunks; with ``usage`` every chunk has the field and a last one fills it."""
    extra = {"usage": None} if usage else {}
    async for item in generation.outputs(PING_SECONDS):
        if item is None:
            yield None
            continue
        for choice in choices.chunks(*item):
            yield {**head, "choices": [choice], **extra}
    if usage:
        yield {**head, "choices": [], "usage": generation.usage()}
