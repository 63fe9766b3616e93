"""evaluate() from files, against a separate float64 computation with transformers."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from quantkit.errors import DataError
from quantkit.eval import EvalResult, compare, evaluate
from tests.helpers.tiny import TEXT, tiny_model

SEQ_LEN = 48


@dataclass(frozen=True)
class Figures:
    """What the oracle found, one number per scored position."""

    nll: list[float]
    nll_base: list[float]
    kl: list[float]
    same: list[bool]

    def check(self, result: EvalResult) -> None:
        """Every figure to 1e-5 relative; 1e-4 is promised."""
        count = len(self.nll)
        kl = sorted(self.kl)
        place = 0.99 * (count - 1)
        low = int(place)
        p99 = kl[low] + (place - low) * (kl[min(low + 1, count - 1)] - kl[low])
        mean, mean_base = math.fsum(self.nll) / count, math.fsum(self.nll_base) / count
        expected = {
            "nll": mean,
            "ppl": math.exp(mean),
            "ppl_baseline": math.exp(mean_base),
            "ppl_ratio": math.exp(mean - mean_base),
            "kl_mean": math.fsum(kl) / count,
            "kl_p99": p99,
            "kl_max": kl[-1],
            "top1": sum(self.same) / count,
        }
        assert result.num_scored == count
        for name, value in expected.items():
            assert getattr(result, name) == pytest.approx(value, rel=1e-5), name


def read_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The folder's own tokenizer; AutoTokenizer takes parts of it from the model type."""
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


def oracle(documents: list[str], model: Path, base: Path, score: str) -> Figures:
    """Plain loops over documents, windows and positions."""
    tokenizer = read_tokenizer(base)
    loaded = [
        AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64, attn_implementation="eager"
        ).eval()
        for folder in (model, base)
    ]
    found = Figures([], [], [], [])
    for document in documents:
        ids = tokenizer(document)["input_ids"]
        while len(ids) >= 2:
            window, ids = ids[:SEQ_LEN], ids[SEQ_LEN:]
            with torch.no_grad():
                q, p = (each(torch.tensor([window])).logits[0].log_softmax(-1) for each in loaded)
            assert p.dtype == torch.float64
            start = 1 if score == "all" else max(1, len(window) // 2)
            for i in range(start, len(window)):
                found.nll.append(-float(q[i - 1, window[i]]))
                found.nll_base.append(-float(p[i - 1, window[i]]))
                found.kl.append(float(torch.sum(p[i - 1].exp() * (p[i - 1] - q[i - 1]))))
                found.same.append(bool(p[i - 1].argmax() == q[i - 1].argmax()))
    return found


def perturbed(folder: Path, to: Path, share: float) -> Path:
    """A copy of a model, every weight moved by noise of `share` of its tensor's spread."""
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    generator = torch.Generator().manual_seed(7)
    weights = load_file(folder / "model.safetensors")
    moved = {
        name: value + share * value.std() * torch.randn(value.shape, generator=generator)
        for name, value in weights.items()
    }
    save_file(moved, to / "model.safetensors", metadata={"format": "pt"})
    return to


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small lose time to a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A random llama, and a worse copy of it."""
    folder = tmp_path_factory.mktemp("llama")
    base = tiny_model("llama", folder / "base")
    return perturbed(base, folder / "model", 0.05), base


@pytest.mark.parametrize("score", ["second-half", "all"])
def test_text_equals_the_oracle_at_every_batch_size(
    llama: tuple[Path, Path], tmp_path: Path, score: str
) -> None:
    model, base = llama
    path = tmp_path / "text.txt"
    path.write_text(TEXT[:1500], encoding="utf-8")
    expected = oracle([TEXT[:1500]], model, base, score)
    for batch_size in (1, 2, 3, 8, None):
        result = evaluate(
            str(model),
            baseline=str(base),
            texts=[str(path)],
            seq_len=SEQ_LEN,
            score=score,
            batch_size=batch_size,
            device="cpu",
        )
        expected.check(result)
    assert result.bytes == sum(
        value.numel() * value.element_size()
        for value in load_file(model / "model.safetensors").values()
    )
    assert result.bits_per_weight == 32.0


@pytest.mark.parametrize("arch", ["mistral", "qwen2", "qwen3", "phi3"])
def test_other_families_equal_the_oracle(arch: str, tmp_path: Path) -> None:
    base = tiny_model(arch, tmp_path / "base", seed=3)
    model = perturbed(base, tmp_path / "model", 0.03)
    path = tmp_path / "text.txt"
    path.write_text(TEXT[:700], encoding="utf-8")
    result = evaluate(
        model, baseline=base, texts=[str(path)], seq_len=SEQ_LEN, batch_size=3, device="cpu"
    )
    oracle([TEXT[:700]], model, base, "second-half").check(result)


def document(tokenizer: PreTrainedTokenizerFast, count: int, start: int = 0) -> str:
    """A text of exactly `count` tokens, cut from a source of words."""
    size = count
    while True:
        text = TEXT[start : start + size]
        found = len(tokenizer(text)["input_ids"])
        if found == count:
            return text
        assert found < count, "no text of that many tokens begins here"
        size += 1


def test_documents_of_unequal_length(llama: tuple[Path, Path], tmp_path: Path) -> None:
    model, base = llama
    tokenizer = read_tokenizer(base)
    documents = [document(tokenizer, count, 50 * count) for count in (3, 9, 40, 200)]
    path = tmp_path / "documents.jsonl"
    path.write_text("\n".join(json.dumps({"text": each}) for each in documents), encoding="utf-8")
    expected = oracle(documents, model, base, "all")
    totals = []
    for batch_size in (1, 2, 4, 8):
        result = evaluate(
            model,
            baseline=base,
            texts=[str(path)],
            seq_len=SEQ_LEN,
            score="all",
            batch_size=batch_size,
            device="cpu",
        )
        expected.check(result)
        assert result.num_tokens == 252
        totals.append(result.nll * result.num_scored)
    assert totals == pytest.approx([totals[0]] * 4, rel=1e-6)


@pytest.mark.parametrize("count", [2, 50, 127])
def test_short_texts_have_the_right_value(
    llama: tuple[Path, Path], tmp_path: Path, count: int
) -> None:
    model, base = llama
    text = document(read_tokenizer(base), count)
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    result = evaluate(
        model, baseline=base, texts=[str(path)], seq_len=SEQ_LEN, score="all", device="cpu"
    )
    oracle([text], model, base, "all").check(result)


def test_texts_of_line_ends(llama: tuple[Path, Path], tmp_path: Path) -> None:
    model, base = llama
    path = tmp_path / "text.txt"
    path.write_text("\n", encoding="utf-8")
    for text in ("", "\n"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=f"has {len(text)} token"):
            evaluate(model, texts=[str(path)], device="cpu")
    # The tokenizer was trained on sources, so runs of line ends are tokens of their own.
    text = "\n" * 37
    path.write_text(text, encoding="utf-8")
    result = evaluate(model, baseline=base, texts=[str(path)], seq_len=SEQ_LEN, device="cpu")
    oracle([text], model, base, "second-half").check(result)


def test_a_file_against_itself(llama: tuple[Path, Path], tmp_path: Path) -> None:
    model, base = llama
    path = tmp_path / "text.txt"
    path.write_text(TEXT[:2000], encoding="utf-8")
    itself, other = compare([base, model], base, texts=[str(path)], seq_len=SEQ_LEN, device="cpu")
    assert itself.kl_max is not None
    assert 0.0 <= itself.kl_max < 1e-6
    assert other.kl_mean is not None
    assert other.kl_mean > 1e-3
