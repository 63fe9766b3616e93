"""/v1/completions: outputs of the engine as OpenAI's completion choices."""

from collections.abc import Iterator, Sequence
from typing import Any

from quantkit.core.tokenizer import Tokenizer
from quantkit.runtime.request import Output, TokenLogprob
from quantkit.server.logprobs import CompletionLogprobs


class CompletionChoices:
    """Choices of one answer."""

    id_prefix = "cmpl-"
    object_name = "text_completion"
    chunk_name = "text_completion"

    def __init__(self, tokenizer: Tokenizer, *, logprobs: int | None) -> None:
        self._tokenizer = tokenizer
        self._top = logprobs
        self._logprobs: dict[int, CompletionLogprobs] = {}

    def chunks(self, index: int, output: Output) -> Iterator[dict[str, Any]]:
        """Chunks of a stream: the text, the reason last and alone."""
        logprobs = self._report(index, output.logprobs or ())
        if output.text or logprobs:
            yield _choice(index, output.text, logprobs, None)
        if output.finish_reason is not None:
            yield _choice(index, "", None, output.finish_reason)

    def whole(self, index: int, outputs: Sequence[Output]) -> dict[str, Any]:
        """One choice of an answer in one piece."""
        tokens = [token for output in outputs for token in output.logprobs or ()]
        text = "".join(output.text for output in outputs)
        logprobs = self._report(index, tokens, empty=True)
        return _choice(index, text, logprobs, outputs[-1].finish_reason)

    def _report(
        self, index: int, tokens: Sequence[TokenLogprob], *, empty: bool = False
    ) -> dict[str, Any] | None:
        if self._top is None or not (tokens or empty):
            return None
        if index not in self._logprobs:
            self._logprobs[index] = CompletionLogprobs(self._tokenizer, self._top)
        return self._logprobs[index].add(tokens)


def _choice(
    index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
