"""Client of an OpenAI-compatible server, as much of it as a conversation needs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx

from quantkit.errors import DataError, QuantkitError, ResourceError, UsageError

Message = Mapping[str, str]
_CONNECT_TIMEOUT_S = 10.0


class RemoteChat:
    """One server, and the model on it that answers.

    Args:
        url: of the server, with or without ``/v1``.
        api_key: sent as bearer token, if given.
        model: name of the model on the server; the first that it lists if None.

    Raises:
        ResourceError: the server cannot be reached or fails.
        UsageError: the server refuses the key or knows no such model.
    """

    def __init__(self, url: str, *, api_key: str | None = None, model: str | None = None) -> None:
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1"
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # A slow model may think for minutes between two tokens.
        timeout = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S)
        try:
            self._client = httpx.Client(headers=headers, timeout=timeout)
        except (ValueError, httpx.InvalidURL) as error:
            raise UsageError(f"cannot use {url}: {error}") from None
        try:
            self.model = model or self._first_model()
        except QuantkitError:
            self.close()
            raise

    def stream(
        self, messages: Sequence[Message], options: Mapping[str, Any]
    ) -> Iterator[tuple[str, str | None]]:
        """Answer a conversation: pairs of new text and finish reason, which the last one has.

        Args:
            messages: the conversation.
            options: further fields of the request, such as ``max_tokens``.

        Raises:
            ResourceError: the server fails or goes away.
            UsageError: the server refuses the request.
        """
        body = {"model": self.model, "messages": list(messages), "stream": True, **options}
        try:
            with self._client.stream("POST", f"{self._url}/chat/completions", json=body) as answer:
                if answer.status_code != httpx.codes.OK:
                    answer.read()
                    raise self._refused(answer)
                yield from self._events(answer.iter_lines())
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from None

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _first_model(self) -> str:
        try:
            answer = self._client.get(f"{self._url}/models", timeout=_CONNECT_TIMEOUT_S)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from None
        if answer.status_code != httpx.codes.OK:
            raise self._refused(answer)
        try:
            return str(answer.json()["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError):
            raise DataError(
                f"{self._url}/models does not list a model",
                hint="is that the address of an OpenAI-compatible server?",
            ) from None

    def _events(self, lines: Iterator[str]) -> Iterator[tuple[str, str | None]]:
        for line in lines:
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                return
            try:
                event = json.loads(data)
                if "error" in event:
                    raise ResourceError(f"{self._url}: {_message(event)}")
                for choice in event["choices"]:
                    yield choice["delta"].get("content") or "", choice.get("finish_reason")
            except (ValueError, KeyError, TypeError, AttributeError):
                raise DataError(f"{self._url} sent an event that is not understood") from None

    def _refused(self, answer: httpx.Response) -> QuantkitError:
        try:
            reason = _message(answer.json())
        except ValueError:
            reason = answer.reason_phrase
        text = f"{self._url} answered {answer.status_code}: {reason}"
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            return UsageError(text, hint="give the server's key with --api-key")
        if answer.is_client_error and answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
            return UsageError(text)
        return ResourceError(text, hint="try again when the server is ready")

    def _unreachable(self, error: Exception) -> ResourceError:
        return ResourceError(
            f"cannot talk to {self._url}: {error}",
            hint="is the server running? `quantkit serve MODEL` starts one",
        )


def _message(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)
