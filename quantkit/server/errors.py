"""Errors in OpenAI's shape, and the handlers that give every failure that shape."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from quantkit.errors import QuantkitError

log = logging.getLogger(__name__)

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A request that is answered with an error.

    Args:
        status: HTTP status.
        message: one line for people.
        param: the field at fault, as a path such as ``messages[0].content``.
        code: one word for programs.
        headers: further response headers, ``Retry-After`` for instance.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON document of the answer, or of the last event of a stream."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, kind),
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """The whole answer."""
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)


def unavailable(reason: str, code: str) -> ApiError:
    """503 while the model loads or the server drains."""
    return ApiError(503, reason, code=code, headers={"Retry-After": "1"})


def install_handlers(app: FastAPI, fields: frozenset[str]) -> None:
    """Answer every failure in OpenAI's shape.

    Args:
        fields: names of all request fields, by which a validation path is told from type labels.
    """

    async def api_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return error.response()

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return _from_validation(error.errors(), fields).response()

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        headers = error.headers or {}
        return ApiError(error.status_code, str(error.detail), headers=headers).response()

    async def expected(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, QuantkitError)
        return ApiError(400, error.message).response()

    async def bug(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return ApiError(500, "internal error", code="internal_error").response()

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(QuantkitError, expected)
    app.add_exception_handler(Exception, bug)


def _from_validation(problems: Sequence[Any], fields: frozenset[str]) -> ApiError:
    """One error for the first problem that pydantic found."""
    first = problems[0]
    reason = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", reason)
        return ApiError(400, f"the body is not valid JSON: {reason}", code="invalid_json")
    path = [part for part in first["loc"][1:] if isinstance(part, int) or part in fields]
    if "param" in (context := first.get("ctx", {})):  # several fields looked at together
        path.append(context["param"])
    if not path:
        return ApiError(400, f"the body must be a JSON object: {reason}", code="invalid_body")
    param = str(path[0]) + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path[1:])
    if first["type"] == "missing":
        return ApiError(400, f"{param}: this field is required", param=param, code="missing_field")
    return ApiError(400, f"{param}: {reason}", param=param, code="invalid_value")
