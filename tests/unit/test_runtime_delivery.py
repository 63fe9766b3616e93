"""What clients get from the events of the loop: text held back and let go, ends, counts."""

from collections.abc import Sequence

import pytest
import tokenizers
from tokenizers import decoders, models

from quantkit.runtime.delivery import Delivery, Event
from quantkit.runtime.request import Output, Request, SamplingParams

# One token is a space together with the first byte of a longer character.
VOCAB = {"a": 0, "b": 1, "Ġð": 2, "Ŀ": 3, "c": 4}


@pytest.fixture
def backend() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE(vocab=VOCAB, merges=[]))
    made.decoder = decoders.ByteLevel()
    return made


class _Talk:
    """One request, told of its events."""

    def __init__(self, backend: tokenizers.Tokenizer, params: SamplingParams) -> None:
        self.ended: list[str] = []
        self.outputs: list[Output] = []
        self.delivery = Delivery(backend, self.ended.append)
        self.request = Request("r", [0, 1], params, seed=0, eos=frozenset({4}), end=99)
        self.delivery.open(self.request, self.outputs.append)

    def tell(self, tokens: Sequence[int], finish: str | None = None) -> str:
        for i, token in enumerate(tokens):
            last = finish if i == len(tokens) - 1 else None
            self.delivery.handle(Event(self.request, token, finish=last))  # type: ignore[arg-type]
        return "".join(output.text for output in self.outputs)


def test_the_whole_part_of_an_unfinished_token_is_let_go_at_the_end(
    backend: tokenizers.Tokenizer,
) -> None:
    for tokens, finish in (([0, 2], "length"), ([0, 2, 4], "stop")):
        talk = _Talk(backend, SamplingParams())
        assert talk.tell(tokens, finish) == "a "
        assert talk.outputs[-1].finish_reason == finish
        assert talk.outputs[-1].num_output_tokens == len(tokens)
    talk = _Talk(backend, SamplingParams(stop=" "))
    assert talk.tell([0, 2, 4], "stop") == "a"
    assert talk.outputs[-1].stop_reason == " "


def test_what_may_become_a_stop_string_is_let_go_when_it_does_not(
    backend: tokenizers.Tokenizer,
) -> None:
    talk = _Talk(backend, SamplingParams(stop="abb"))
    assert talk.tell([0, 1]) == ""
    assert talk.tell([0]) == "ab"
    assert talk.tell([1], "length") == "abab"
    assert talk.ended == []


def test_the_loop_hears_of_an_end_that_it_does_not_know_and_later_news_are_dropped(
    backend: tokenizers.Tokenizer,
) -> None:
    talk = _Talk(backend, SamplingParams(stop="b"))
    assert talk.tell([0, 1, 0, 0]) == "a"
    assert talk.ended == ["r"]
    assert len(talk.outputs) == 2
    talk.delivery.handle(Event(talk.request, finish="abort"))
    assert len(talk.outputs) == 2
    assert dict(talk.delivery.finished) == {"stop": 1}
    assert talk.delivery.num_output_tokens == 2


def test_a_failure_is_the_last_output(backend: tokenizers.Tokenizer) -> None:
    talk = _Talk(backend, SamplingParams())
    talk.tell([0])
    talk.delivery.handle(Event(talk.request, error="no"))
    assert talk.outputs[-1].error == "no"
    assert talk.outputs[-1].is_last
    assert talk.outputs[-1].num_output_tokens == 1
    assert dict(talk.delivery.finished) == {"error": 1}
