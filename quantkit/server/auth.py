"""API keys: everything but /health needs one when any is set."""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from quantkit.server.errors import ApiError

PUBLIC_PATHS = frozenset({"/health"})


class ApiKeys:
    """Middleware that answers 401 unless the request carries ``Authorization: Bearer KEY``."""

    def __init__(self, app: ASGIApp, *, keys: Sequence[str]) -> None:
        self.app = app
        # Digests have one length, so that comparing them says nothing about the keys' lengths.
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] == "http"
            and self._digests
            and scope["path"] not in PUBLIC_PATHS
            and not self._known(dict(scope["headers"]).get(b"authorization", b""))
        ):
            error = ApiError(
                401,
                "missing or wrong API key; send it as 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error.response()(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _known(self, header: bytes) -> bool:
        scheme, _, key = header.partition(b" ")
        given = _digest(key.strip())
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return scheme.lower() == b"bearer" and any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
