"""/v1/chat/completions: outputs of the engine as OpenAI's chat choices."""

from collections.abc import Iterator, Sequence
from typing import Any

from quantkit.core.tokenizer import Tokenizer
from quantkit.runtime.request import Output, TokenLogprob
from quantkit.server.logprobs import ChatLogprobs


class ChatChoices:
    """Choices of one answer."""

    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, *, logprobs: bool) -> None:
        self._logprobs = ChatLogprobs(tokenizer) if logprobs else None
        self._started: set[int] = set()

    def chunks(self, index: int, output: Output) -> Iterator[dict[str, Any]]:
        """Chunks of a stream: the role first and once, the text, the reason last and alone."""
        if index not in self._started:
            self._started.add(index)
            yield _chunk(index, {"role": "assistant", "content": ""})
        logprobs = self._report(output.logprobs or ())
        if output.text or logprobs:
            yield _chunk(index, {"content": output.text}, logprobs=logprobs)
        if output.finish_reason is not None:
            yield _chunk(index, {}, finish_reason=output.finish_reason)

    def whole(self, index: int, outputs: Sequence[Output]) -> dict[str, Any]:
        """One choice of an answer in one piece."""
        tokens = [token for output in outputs for token in output.logprobs or ()]
        return {
            "index": index,
            "message": {
                "role": "assistant",
                "content": "".join(output.text for output in outputs),
                "refusal": None,
            },
            "logprobs": self._report(tokens, empty=True),
            "finish_reason": outputs[-1].finish_reason,
        }

    def _report(
        self, tokens: Sequence[TokenLogprob], *, empty: bool = False
    ) -> dict[str, Any] | None:
        return self._logprobs.add(tokens) if self._logprobs and (tokens or empty) else None


def _chunk(
    index: int,
    delta: dict[str, Any],
    *,
    logprobs: dict[str, Any] | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
