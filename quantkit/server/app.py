"""The FastAPI application: routes, and the middleware around them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request, Response

import quantkit
from quantkit.core.tokenizer import Tokenizer
from quantkit.server.answer import answer
from quantkit.server.auth import ApiKeys
from quantkit.server.errors import ApiError, install_handlers
from quantkit.server.generation import Engine
from quantkit.server.limits import MAX_BODY_BYTES, BodyLimit
from quantkit.server.metrics import metrics_response
from quantkit.server.prompts import chat_ids, check_ids, encode
from quantkit.server.render import Renderer
from quantkit.server.sampling import SamplingDefaults
from quantkit.server.schemas import FIELDS, ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from quantkit.server.state import ServerState, Service

MAX_NUM_SEQS = 16
MAX_QUEUE = 256


def create_app(
    engine: Engine,
    tokenizer: Tokenizer,
    *,
    model_name: str,
    max_model_len: int,
    vocab_size: int | None = None,
    api_keys: Sequence[str] = (),
    max_num_seqs: int = MAX_NUM_SEQS,
    max_queue: int = MAX_QUEUE,
    chat_template: str | None = None,
    defaults: SamplingDefaults | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> FastAPI:
    """An application over a running engine, ready at once. The engine stays the caller's to stop.

    Args:
        model_name: the name that requests and answers carry.
        max_model_len: tokens that a prompt and its answer may have together.
        vocab_size: token ids are below it; by default the tokenizer's.
        max_num_seqs, max_queue: sequences that run at once, and that wait before 429.
        chat_template: Jinja text that takes the place of the tokenizer's own.

    Raises:
        ModelError: the model's chat template has a syntax error.
    """
    state = ServerState(max_num_seqs, max_queue)
    state.loaded = make_service(
        engine,
        tokenizer,
        names=(model_name,),
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        chat_template=chat_template,
        defaults=defaults,
    )
    return build_app(state, api_keys=api_keys, max_body_bytes=max_body_bytes)


def make_service(
    engine: Engine,
    tokenizer: Tokenizer,
    *,
    names: Sequence[str],
    max_model_len: int,
    vocab_size: int | None,
    chat_template: str | None,
    defaults: SamplingDefaults | None,
) -> Service:
    """One loaded model, its chat template compiled, so that an error shows before any request."""
    source = tokenizer.template_source if chat_template is None else chat_template
    return Service(
        engine,
        tokenizer,
        names,
        None if source is None else Renderer(source, tokenizer.special),
        max_model_len,
        vocab_size or tokenizer.vocab_size,
        defaults or SamplingDefaults(),
    )


def build_app(
    state: ServerState, *, api_keys: Sequence[str] = (), max_body_bytes: int = MAX_BODY_BYTES
) -> FastAPI:
    """An application over a state, which may become ready later."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        if state.loaded is not None and state.loaded.renderer is not None:
            state.loaded.renderer.close()

    app = FastAPI(
        title="quantkit",
        version=quantkit.__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.server = state
    install_handlers(app, FIELDS)
    _add_model_routes(app, state)
    _add_text_routes(app, state)
    app.add_middleware(BodyLimit, max_bytes=max_body_bytes)
    app.add_middleware(ApiKeys, keys=api_keys)  # the last one added is the first one met
    return app


def _needs_json(content_type: Annotated[str, Header()] = "") -> None:
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(
            415,
            f"the content type is {kind or 'missing'}, expected application/json",
            code="unsupported_media_type",
        )


def _add_model_routes(app: FastAPI, state: ServerState) -> None:
    """Generation, and what there is to know of the model."""
    as_json = [Depends(_needs_json)]

    @app.get("/health")
    async def health() -> dict[str, str]:
        state.service()
        return {"status": "ok"}

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": quantkit.__version__}

    @app.get("/metrics", response_model=None)
    async def metrics() -> Response:
        return metrics_response(state)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [state.service().card()]}

    @app.get("/v1/models/{model:path}")
    async def model_card(model: str) -> dict[str, Any]:
        service = state.service()
        service.check_name(model)
        return service.card()

    @app.post("/v1/chat/completions", dependencies=as_json, response_model=None)
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        return await answer(state, request, body)

    @app.post("/v1/completions", dependencies=as_json, response_model=None)
    async def completions(body: CompletionBody, request: Request) -> Response:
        return await answer(state, request, body)


def _add_text_routes(app: FastAPI, state: ServerState) -> None:
    """Text to tokens and back, as the model sees them."""
    as_json = [Depends(_needs_json)]

    @app.post("/tokenize", dependencies=as_json)
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        service = state.service()
        service.check_name(body.model)
        if body.prompt is not None:
            ids = await encode(service, body.prompt, special=body.add_special_tokens)
        else:
            ids = await chat_ids(service, body)
        return {"count": len(ids), "max_model_len": service.max_model_len, "tokens": ids}

    @app.post("/detokenize", dependencies=as_json)
    async def detokenize(body: DetokenizeBody) -> dict[str, str]:
        service = state.service()
        service.check_name(body.model)
        check_ids(service, body.tokens, "tokens")
        return {"prompt": service.tokenizer.decode(body.tokens)}
