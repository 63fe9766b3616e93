"""Rows, JSON and the HTML page hold the figures, and nothing from a text gets into the markup."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from quantkit.errors import ResourceError
from quantkit.eval import EvalResult, Subject, compare
from quantkit.eval.divergence import Bin
from quantkit.eval.gates import METRICS
from quantkit.eval.html import bars
from quantkit.eval.report import (
    HEADER,
    comparison_rows,
    figure_rows,
    gate_rows,
    write_html,
    write_json,
)
from tests.helpers.fake_eval import VOCAB, fake_decoder, word_tokenizer, words

EVIL = "<script>alert('&')</script>"


def run(tmp_path: Path, *, baseline: bool = True) -> list[EvalResult]:
    path = tmp_path / "text.txt"
    path.write_text(words(60) + f" {EVIL} w3 {EVIL}")
    vocab = {f"w{number}": number for number in range(VOCAB)} | {EVIL: 7}
    del vocab["w7"]

    def subject(name: str, noise: float) -> Subject:
        decoder = fake_decoder(noise=noise)
        return Subject(name, word_tokenizer(vocab), lambda _: decoder, 1000, 1600)

    return compare(
        [subject("<b>one</b>", 0.1), subject("two", 0.3)],
        subject("base", 0.0) if baseline else None,
        texts=[str(path)],
        seq_len=16,
        score="all",
        fail_if=["ppl > 1", "bytes > 2000"],
    )


def test_rows_hold_every_figure(tmp_path: Path) -> None:
    first, second = run(tmp_path)
    rows = comparison_rows([first, second])
    assert [row[0] for row in rows] == ["base", "<b>one</b>", "two"]
    assert all(len(row) == len(HEADER) for row in rows)
    assert rows[1][1:3] == ("1,000", "5")
    assert float(rows[2][3]) == pytest.approx(second.ppl, rel=1e-4)
    labels = dict(figure_rows(first))
    assert labels["scored positions"] == f"{first.num_scored} (all)"
    assert labels["top-1 agreement"].endswith(" %")
    assert [row[2] for row in gate_rows(first)] == ["failed", "passed"]


def test_without_a_baseline_nothing_is_made_up(tmp_path: Path) -> None:
    results = run(tmp_path, baseline=False)
    assert len(comparison_rows(results)) == 2
    assert not any("KL" in label for label, _ in figure_rows(results[0]))
    assert results[0].metrics().keys() == {name for name, takes in METRICS.items() if not takes}
    document = results[0].to_dict()
    assert document["kl_mean"] is None
    assert document["kl_histogram"] == ()


def test_json_is_valid_and_complete(tmp_path: Path) -> None:
    results = run(tmp_path)
    path = tmp_path / "result.json"
    write_json(path, results[:1])

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON number")

    document = json.loads(path.read_text(), parse_constant=refuse)
    for name, value in results[0].metrics().items():
        assert document[name] == value
    assert document["score"] == "all"
    assert document["scored"].startswith("predicting token i for i in [1, L)")
    assert document["gates"][0] == {
        "gate": "ppl > 1.0", "metric": "ppl", "value": results[0].ppl, "fired": True,
    }  # fmt: skip
    write_json(path, results)
    assert len(json.loads(path.read_text())) == 2


class Reader(HTMLParser):
    """Tags that are open, and all text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("baseline", [True, False])
def test_page_is_whole_and_escaped(tmp_path: Path, baseline: bool) -> None:
    path = tmp_path / "page.html"
    results = run(tmp_path, baseline=baseline)
    write_html(path, results)
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    assert reader.open == []
    assert "script" not in reader.tags
    assert "b" not in reader.tags
    assert ("svg" in reader.tags) == baseline
    text = "".join(reader.text)
    assert "<b>one</b>" in text
    assert EVIL in text
    for _, value in figure_rows(results[0]):
        assert value in text


def test_bars_are_as_high_as_their_counts() -> None:
    found = bars([Bin(0, 1, 5), Bin(1, 2, 10), Bin(2, 3, 0)])
    assert [bar.height for bar in found] == [60, 120, 0]
    assert [bar.y for bar in found] == [60, 0, 120]
    assert found[1].title == "1 to 2: 10"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="No such file"):
        write_json(tmp_path / "missing" / "result.json", run(tmp_path))
