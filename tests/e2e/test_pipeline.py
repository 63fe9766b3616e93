"""quantize(), end to end on tiny models: files, reports, logits, and what a failure leaves."""

import hashlib
import json
import shutil

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from quantkit import pipeline
from quantkit.calibration.data import load_windows
from quantkit.core.qtensor import QuantizedTensor
from quantkit.core.recipe import resolve_recipe
from quantkit.core.report import Report
from quantkit.core.tokenizer import Tokenizer
from quantkit.errors import CheckFailed, ModelError, ResourceError
from quantkit.formats import open_model
from quantkit.pipeline import quantize
from quantkit.runtime.model import load_model
from tests.helpers.tiny import ARCHS, tiny_model

SMALL = {"num_samples": 8, "seq_len": 64}
FLAGS = {
    "gptq": ({}, "out"),
    "gptq-asym3": ({"scheme": "w3a16-g32-asym"}, "out"),
    "gguf": ({"type": "Q4_0"}, "out.gguf"),
    "rtn-gguf8": ({"type": "Q8_0", "methods": ["rtn"]}, "out.gguf"),
}


def digests(folder):
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(folder.iterdir())}


def run(model, output, settings=(), **flags):
    recipe = resolve_recipe(str(model), overrides={**SMALL, **flags}, settings=settings)
    return quantize(recipe, output=output)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", FLAGS)
def test_every_family_in_every_container(arch, case, tmp_path) -> None:
    source = tiny_model(arch, tmp_path / "m")
    before = digests(source)
    flags, name = FLAGS[case]
    result = run(source, tmp_path / name, **flags)
    assert digests(source) == before
    assert result["verified"]["codes_equal"]
    assert result["verified"]["hidden_difference"] <= 1e-3
    assert not (tmp_path / f"{name}.partial").exists()

    # The runtime, with packed weights, gives what transformers gives with the decoded ones.
    checkpoint = open_model(tmp_path / name)
    decoded = {n: checkpoint.load_float(n, torch.float32) for n in checkpoint.tensors}
    plain = tmp_path / "decoded"
    shutil.copytree(source, plain)
    save_file({k: v.contiguous() for k, v in decoded.items()}, plain / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(
        plain, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ids = torch.randint(0, 512, (2, 50), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        want = model(ids).logits
    got = load_model(checkpoint).window_logits(ids)
    assert (got - want).abs().max() <= 1e-4 * want.std()
    quantized = [n for n in checkpoint.tensors if checkpoint.tensors[n].scheme]
    assert len(quantized) >= 2 * len(checkpoint.require_model().arch.linears)
    assert all(isinstance(checkpoint.load(n), QuantizedTensor) for n in quantized)


def test_the_planned_bytes_are_the_files_bytes(tmp_path) -> None:
    source = tiny_model("llama", tmp_path / "m")
    recipe = resolve_recipe(str(source), overrides=SMALL)
    planned = quantize(recipe, output=tmp_path / "out", dry_run=True)
    assert not (tmp_path / "out").exists()
    run(source, tmp_path / "out")
    opened = open_model(tmp_path / "out")
    assert sum(info.nbytes for info in opened.tensors.values()) == planned["bytes"]
    file = tmp_path / "out" / "model.safetensors"
    header = int.from_bytes(file.read_bytes()[:8], "little")
    assert file.stat().st_size == 8 + header + planned["bytes"]


def test_what_the_output_says_of_itself(tmp_path) -> None:
    source = tiny_model("llama", tmp_path / "m")
    (source / "extra.json").write_text('{"kept": true}')
    report = Report("quantize", {})
    recipe = resolve_recipe(str(source), overrides=SMALL)
    quantize(recipe, output=tmp_path / "out", report=report)
    record = json.loads((tmp_path / "out" / "quantkit.json").read_text())
    assert record["recipe_hash"] == recipe.hash()
    assert record["data"]["tokens_used"] == 8 * 64
    assert len(record["data"]["digest"]) == 64
    assert len(record["tensors"]) == 14
    assert all(0 < row["error"] < 0.1 and row["damp"] == 0.01 for row in record["tensors"])
    assert not report.warnings
    assert (tmp_path / "out" / "extra.json").read_text() == '{"kept": true}'
    card = (tmp_path / "out" / "README.md").read_text()
    assert "w4a16-g64" in card
    assert recipe.hash() in card


def test_the_same_run_gives_the_same_bytes(tmp_path) -> None:
    source = tiny_model("llama", tmp_path / "m")
    for name in ("a", "b"):
        run(source, tmp_path / name)
    made = [digests(tmp_path / name)["model.safetensors"] for name in ("a", "b")]
    assert made[0] == made[1]


def test_gptq_beats_rounding_beats_plain_rounding(tmp_path) -> None:
    source = tiny_model("llama", tmp_path / "m")
    opened = open_model(source)
    tokens = Tokenizer.from_checkpoint(opened)
    ids = load_windows(tokens, ["builtin"], 8, 64, split="evaluation", warn=print).ids
    want = load_model(opened).window_logits(ids).log_softmax(-1)

    def divergence(name, settings=(), **flags):
        run(source, tmp_path / name, settings, **flags, num_samples=64)
        got = load_model(open_model(tmp_path / name)).window_logits(ids).log_softmax(-1)
        found = float((want.exp() * (want - got)).sum(-1).mean())
        print(name, found)
        return found

    plain = divergence("plain", ["scale_search=none"], methods=["rtn"], bits=3)
    searched = divergence("rtn", methods=["rtn"], bits=3)
    assert searched < plain
    assert divergence("gptq", bits=3) < 0.9 * searched


def test_plain_rounding_reads_no_text(tmp_path, monkeypatch) -> None:
    source = tiny_model("llama", tmp_path / "m")

    def forbidden(*args, **kwargs):
        raise AssertionError("no calibration is needed")

    monkeypatch.setattr(pipeline, "load_windows", forbidden)
    result = run(source, tmp_path / "out", ["scale_search=mse"], methods=["rtn"])
    assert result["data"] is None


def test_rules_mix_schemes_in_one_file(tmp_path) -> None:
    source = tiny_model("llama", tmp_path / "m")
    rules = ["k_proj=w8a16-g32", r"layers\.1\.mlp=keep"]
    run(source, tmp_path / "out", rules=rules)
    opened = open_model(tmp_path / "out")
    stored = {n: str(i.scheme) for n, i in opened.tensors.items()}
    assert stored["model.layers.0.self_attn.k_proj.weight"] == "w8a16-g32"
    assert stored["model.layers.0.self_attn.q_proj.weight"] == "w4a16-g64"
    assert stored["model.layers.1.mlp.down_proj.weight"] == "None"


@pytest.mark.parametrize("name", ["out", "out.gguf"])
def test_a_failure_leaves_nothing(name, tmp_path, monkeypatch) -> None:
    source = tiny_model("llama", tmp_path / "m")
    before = digests(source)
    calls = []

    def failing(self, weights, layer):
        calls.append(layer)
        raise ModelError("block 0: the outputs hold NaN")

    monkeypatch.setattr(pipeline.Walk, "advance", failing)
    with pytest.raises(ModelError):
        run(source, tmp_path / name, **({"type": "Q4_0"} if name.endswith("gguf") else {}))
    assert calls == [0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]
    assert digests(source) == before


def test_no_memory_is_refused_before_work(tmp_path, monkeypatch) -> None:
    source = tiny_model("llama", tmp_path / "m")
    monkeypatch.setattr("quantkit.core.memory.available_bytes", lambda: 1000)
    with pytest.raises(ResourceError, match="memory"):
        run(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_weight_beyond_float16_is_named(tmp_path) -> None:
    source = tiny_model("llama", tmp_path / "m", max_position_embeddings=128)
    opened = open_model(source)
    tensors = {n: opened.load_float(n).clone() for n in opened.tensors}
    tensors["model.layers.1.mlp.up_proj.weight"][3] = 1e7
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.(gate|up)_proj"):
        run(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_verification_notices_a_flipped_bit(tmp_path, monkeypatch) -> None:
    source = tiny_model("llama", tmp_path / "m")
    real = pipeline.verify_output

    def spoiled(output, *rest):
        file = output / "model.safetensors"
        data = bytearray(file.read_bytes())
        data[-1000] ^= 1
        file.write_bytes(data)
        return real(output, *rest)

    monkeypatch.setattr(pipeline, "verify_output", spoiled)
    with pytest.raises(CheckFailed, match="reads back different"):
        run(source, tmp_path / "out")
