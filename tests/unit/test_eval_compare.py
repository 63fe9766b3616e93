"""evaluate() on a small fake model: same figures at every batch size, and what is refused."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from quantkit.core.report import dumps
from quantkit.errors import CheckFailed, DataError, ModelError, ResourceError, UsageError
from quantkit.eval import EvalResult, Subject, check, compare, evaluate
from quantkit.eval import tally as tally_module
from quantkit.eval.subject import resolve_device
from tests.helpers.fake_eval import FakeDecoder, fake_decoder, fake_subject, word_tokenizer, words


@pytest.fixture
def text(tmp_path: Path) -> str:
    """One document of 3, 9, 40 and 200 tokens each."""
    path = tmp_path / "documents.jsonl"
    texts = [words(count, seed=count) for count in (3, 9, 40, 200)]
    path.write_text("\n".join(json.dumps({"text": each}) for each in texts))
    return str(path)


def slow_figures(
    text: str, model: FakeDecoder, base: FakeDecoder, seq_len: int, score: str
) -> tuple[list[float], list[float], list[bool]]:
    """nll, divergence and agreement per position, one token at a time in float64."""
    nll, kl, same = [], [], []
    for line in Path(text).read_text().splitlines():
        ids = [int(word[1:]) for word in json.loads(line)["text"].split()]
        for begin in range(0, len(ids), seq_len):
            part = ids[begin : begin + seq_len]
            for i in range(1 if score == "all" else max(1, len(part) // 2), len(part)):
                logs = []
                for decoder in (model, base):
                    past = decoder.embedding.double()[part[:i]]
                    hidden = past.mean(0) + 0.5 * past[-1]
                    logs.append((decoder.head.double() @ hidden).log_softmax(0))
                q, p = logs
                nll.append(-float(q[part[i]]))
                kl.append(float((p.exp() * (p - q)).sum()))
                same.append(int(p.argmax()) == int(q.argmax()))
    return nll, kl, same


@pytest.mark.parametrize("score", ["second-half", "all"])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 8, None])
def test_figures_equal_a_loop_at_every_batch_size(
    text: str, batch_size: int | None, score: str
) -> None:
    model, base = fake_decoder(noise=0.1), fake_decoder()
    result = evaluate(
        fake_subject("model", model),
        baseline=fake_subject("base", base),
        texts=[text],
        seq_len=16,
        score=score,
        batch_size=batch_size,
    )
    nll, kl, same = slow_figures(text, model, base, 16, score)
    assert result.num_scored == len(nll)
    assert result.num_tokens == 3 + 9 + 40 + 200
    close = {"rel": 1e-5, "abs": 1e-9}
    assert result.nll == pytest.approx(sum(nll) / len(nll), **close)
    assert result.ppl == pytest.approx(math.exp(sum(nll) / len(nll)), **close)
    assert result.kl_mean == pytest.approx(sum(kl) / len(kl), **close)
    assert result.kl_max == pytest.approx(max(kl), **close)
    assert result.top1 == pytest.approx(sum(same) / len(same), **close)
    assert result.ppl_baseline is not None
    assert result.ppl_ratio == pytest.approx(result.ppl / result.ppl_baseline, **close)
    assert sum(each.count for each in result.kl_histogram) == result.num_scored


def test_batches_are_as_large_as_asked_and_no_larger(text: str) -> None:
    decoder = fake_decoder()
    evaluate(fake_subject("m", decoder), texts=[text], seq_len=16, batch_size=4)
    # 14 full windows of 16 tokens, and rests of 8, 8, 9 and 3.
    assert decoder.batch_sizes == [4, 4, 4, 2, 1, 2, 1]


def test_few_rows_at_a_time_change_nothing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> EvalResult:
        subjects = fake_subject("m", fake_decoder(noise=0.1)), fake_subject("b")
        return evaluate(subjects[0], baseline=subjects[1], texts=[text], seq_len=16)

    whole = run().metrics()
    monkeypatch.setattr(tally_module, "_LOGIT_BYTES", 5 * 2 * 40 * 4)
    parts = run().metrics()
    for name in whole.keys() - {"seconds"}:
        assert parts[name] == pytest.approx(whole[name], rel=1e-6), name


@pytest.mark.parametrize("scale", [1e-3, 1.0, 40.0])
def test_a_model_against_itself(text: str, scale: float) -> None:
    decoder = fake_decoder(scale=scale)
    result = evaluate(
        fake_subject("a", decoder), baseline=fake_subject("b", decoder), texts=[text], seq_len=16
    )
    assert result.kl_mean is not None
    assert result.kl_max is not None
    assert -1e-7 <= result.kl_mean <= result.kl_max < 1e-6
    assert (result.top1, result.ppl_ratio, result.nll_delta) == (1.0, 1.0, 0.0)
    assert result.worst_positions == result.worst_windows == ()


def test_fewer_bits_diverge_more_on_a_flat_model(text: str) -> None:
    base = fake_decoder(scale=0.01)

    def rounded(bits: int) -> Subject:
        step = base.head.abs().max() / (2 ** (bits - 1) - 1)
        return fake_subject(
            str(bits), FakeDecoder(base.embedding, (base.head / step).round() * step)
        )

    eight, four = compare([rounded(8), rounded(4)], fake_subject("b", base), texts=[text])
    assert eight.kl_mean is not None
    assert four.kl_mean is not None
    assert 0 < eight.kl_mean < four.kl_mean


def test_several_models_share_one_pass_of_the_baseline(text: str) -> None:
    base = fake_decoder()
    models = [fake_subject(str(n), fake_decoder(noise=n / 10)) for n in (1, 2, 3)]
    together = compare(models, fake_subject("base", base), texts=[text], seq_len=16, batch_size=4)
    assert len(base.batch_sizes) == 7
    for subject, result in zip(models, together, strict=True):
        alone = evaluate(
            subject, baseline=fake_subject("base", base), texts=[text], seq_len=16, batch_size=4
        )
        a, b = result.metrics(), alone.metrics()
        assert {**a, "seconds": 0.0} == {**b, "seconds": 0.0}
        assert result.worst_positions == alone.worst_positions


def test_padding_of_the_vocabulary_changes_no_divergence(text: str) -> None:
    plain, padded = fake_decoder(noise=0.1), fake_decoder(noise=0.1, padding=8)
    results = compare(
        [fake_subject("plain", plain), fake_subject("padded", padded)],
        fake_subject("base"),
        texts=[text],
        seq_len=16,
    )
    assert results[0].kl_mean == pytest.approx(results[1].kl_mean, rel=1e-9)
    assert results[0].top1 == results[1].top1
    assert results[1].ppl > results[0].ppl
    assert results[0].warnings == ()
    assert "vocabularies of 48 and, for the baseline, 40 ids" in results[1].warnings[0]


@pytest.mark.parametrize("count", [2, 50, 127])
def test_a_text_shorter_than_a_window_has_a_value(tmp_path: Path, count: int) -> None:
    path = tmp_path / "text.txt"
    path.write_text(words(count))
    result = evaluate(fake_subject(), texts=[str(path)], seq_len=128)
    assert (result.num_windows, result.num_tokens) == (1, count)
    assert result.num_scored == count - max(1, count // 2)
    assert math.isfinite(result.ppl)
    assert json.loads(dumps(result.to_dict()))["ppl"] == result.ppl


def test_too_short_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("w1")
    with pytest.raises(DataError, match="has 1 token"):
        evaluate(Subject("m", word_tokenizer(), never_loaded), texts=[str(path)])


def never_loaded(_: str) -> FakeDecoder:
    raise AssertionError("a model was loaded")


def spoiled(change: Callable[[FakeDecoder], None]) -> Subject:
    decoder = fake_decoder()
    change(decoder)
    return fake_subject("broken", decoder)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_located(tmp_path: Path, value: float) -> None:
    path = tmp_path / "text.txt"
    path.write_text("w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12 w13 w14")
    subject = spoiled(lambda decoder: decoder.embedding[10].fill_(value))
    message = rf"^broken: logits are not finite in window 2, predicting token 10 of {path}$"
    with pytest.raises(ModelError, match=message):
        evaluate(subject, texts=[str(path)], seq_len=4, score="all", batch_size=3)
    with pytest.raises(ModelError, match=message):
        evaluate(fake_subject(), baseline=subject, texts=[str(path)], seq_len=4, score="all")


def test_a_perplexity_beyond_numbers_is_an_error(text: str) -> None:
    subject = spoiled(lambda decoder: decoder.head.mul_(1e4))
    with pytest.raises(ModelError, match="broken: the mean negative log-likelihood is"):
        evaluate(subject, texts=[text])


def test_tokens_without_embedding_are_named(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("w1 w2 w39 w3")
    decoder = fake_decoder()
    small = FakeDecoder(decoder.embedding[:30], decoder.head[:30])
    with pytest.raises(ModelError, match=r"token 2 of .*text.txt has id 39, but .* 30 embeddings"):
        evaluate(fake_subject("m", small), texts=[str(path)])


def test_windows_beyond_the_positions_warn(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(words(400))
    assert evaluate(fake_subject(), texts=[str(path)], seq_len=256).warnings == ()
    (line,) = evaluate(fake_subject("m"), texts=[str(path)], seq_len=300).warnings
    assert line == "windows of 300 tokens are longer than the 256 positions that m was made for"


def test_gates_are_read_first_and_judged_last(text: str) -> None:
    unread = Subject("m", word_tokenizer(), never_loaded)
    for gate in ("kl_mean > 0.05", "kl > 1", "ppl"):
        with pytest.raises(UsageError):
            evaluate(unread, texts=["missing.txt"], fail_if=[gate])
    result = evaluate(
        fake_subject("m", fake_decoder(noise=0.1)),
        baseline=fake_subject("b"),
        texts=[text],
        fail_if=["kl_mean > 0", "top1 < 0"],
    )
    assert [verdict.fired for verdict in result.gates] == [True, False]
    assert result.has_failed
    with pytest.raises(CheckFailed, match=r"kl_mean > 0\.0"):
        check(result.gates, result.model)


def test_limit_takes_the_first_windows(text: str) -> None:
    decoder = fake_decoder()
    result = evaluate(fake_subject("m", decoder), texts=[text], seq_len=16, limit=5)
    assert (result.num_windows, result.num_tokens) == (5, 3 + 9 + 16 + 16 + 8)


def test_worst_positions_are_the_largest(text: str) -> None:
    model, base = fake_decoder(noise=0.2), fake_decoder()
    result = evaluate(
        fake_subject("m", model),
        baseline=fake_subject("b", base),
        texts=[text],
        seq_len=16,
        score="all",
    )
    _, kl, _ = slow_figures(text, model, base, 16, "all")
    found = [at.value for at in result.worst_positions]
    assert found == pytest.approx(sorted(kl, reverse=True)[:10], rel=1e-4)
    lines = Path(text).read_text().splitlines()
    for at in result.worst_positions:
        line = int(at.source.rpartition(" ")[2])
        tokens = json.loads(lines[line - 1])["text"].split()
        assert at.target == tokens[at.token]
        assert at.context.split()[-1] == tokens[at.token - 1]
    means = [at.value for at in result.worst_windows]
    assert means == sorted(means, reverse=True)


def test_progress_counts_every_window(text: str) -> None:
    class Counting:
        def __init__(self) -> None:
            self.seen: list[object] = []

        def start(self, label: str, total: int, unit: str) -> None:
            self.seen += [label, total, unit]

        def advance(self, n: int = 1, note: str = "") -> None:
            self.seen.append(n)

        def done(self) -> None:
            self.seen.append("done")

        def log(self, line: str) -> None:
            self.seen.append(line)

    say = Counting()
    evaluate(fake_subject(), texts=[text], seq_len=16, batch_size=4, progress=say)
    assert say.seen[:3] == ["evaluate", 18, "window"]
    assert sum(n for n in say.seen[3:-1] if isinstance(n, int)) == 18
    assert say.seen[-1] == "done"


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cpu:0", ""])
def test_devices_that_do_not_exist(name: str) -> None:
    with pytest.raises(UsageError, match="device is"):
        resolve_device(name)


def test_devices() -> None:
    assert resolve_device("cpu") == "cpu"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    assert resolve_device("auto") == ("cuda" if count else "cpu")
    with pytest.raises(ResourceError, match=f"no device cuda:{count}"):
        resolve_device(f"cuda:{count}")
