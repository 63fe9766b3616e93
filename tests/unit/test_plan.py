"""What every tensor becomes, and what is refused before any work."""

from pathlib import Path

import pytest
import torch

from quantkit.core.recipe import resolve_recipe
from quantkit.core.scheme import Scheme
from quantkit.errors import ModelError, UsageError
from quantkit.formats import open_model
from quantkit.plan import make_plan
from tests.helpers.tiny import tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model("llama", tmp_path_factory.mktemp("plan") / "m")


def plan(folder, output=Path("out"), **overrides):
    recipe = resolve_recipe(str(folder), overrides=overrides)
    return make_plan(open_model(folder), recipe, output)


def becomes(planned, name):
    return next(d for d in planned.decisions if d.tensor.name == name).tensor


def test_default_group_is_the_largest_that_divides(folder, tmp_path) -> None:
    assert plan(folder).scheme == Scheme.parse("w4a16-g64")
    assert plan(folder, bits=8).scheme == Scheme.parse("w8a16-g64")
    odd = tiny_model("llama", tmp_path / "odd", intermediate_size=96)
    assert plan(odd).scheme.group == 32
    with pytest.raises(UsageError, match="divides"):
        plan(tiny_model("llama", tmp_path / "worse", intermediate_size=100))


def test_every_tensor_has_a_fate(folder) -> None:
    planned = plan(folder)
    assert {d.tensor.name for d in planned.decisions} == set(open_model(folder).tensors)
    assert len(planned.quantized()) == 14
    assert becomes(planned, "lm_head.weight").scheme is None
    assert becomes(planned, "lm_head.weight").dtype == torch.bfloat16
    assert plan(folder, keep_dtype="float16").decisions[0].tensor.dtype == torch.float16
    assert planned.num_bytes == sum(row["bytes"] for row in planned.rows())
    assert 4 < planned.bits_per_weight(body=True) < 5
    assert planned.bits_per_weight() > planned.bits_per_weight(body=True)


def test_rules_first_match_wins(folder) -> None:
    planned = plan(
        folder, rules=[r"layers\.0\.mlp\.down_proj=keep", "down_proj=w8a16-g32", "v_proj=w4a16-g32"]
    )
    assert becomes(planned, "model.layers.0.mlp.down_proj.weight").scheme is None
    assert becomes(planned, "model.layers.1.mlp.down_proj.weight").scheme == Scheme.parse("q8_0")
    assert becomes(planned, "model.layers.1.self_attn.v_proj.weight").scheme.group == 32


def test_gguf_follows_llama_cpp(folder, tmp_path) -> None:
    planned = plan(folder, Path("x.gguf"), type="Q4_0")
    assert planned.format.name == "gguf"
    assert becomes(planned, "model.embed_tokens.weight").scheme == Scheme.parse("q4_0")
    assert becomes(planned, "lm_head.weight").scheme == Scheme.parse("q8_0")
    assert becomes(planned, "model.norm.weight").dtype == torch.float32
    tied = tiny_model("llama", tmp_path / "tied", tie_word_embeddings=True)
    planned = plan(tied, Path("x.gguf"), type="Q4_0")
    assert becomes(planned, "model.embed_tokens.weight").scheme == Scheme.parse("q8_0")
    assert "lm_head.weight" not in {d.tensor.name for d in planned.decisions}


def test_default_output_name(folder) -> None:
    assert plan(folder, None).output == Path("m-gptq-w4a16-g64")
    assert plan(folder, None, type="Q8_0", methods=["rtn"]).output == Path("m-rtn-q8_0.gguf")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"group_size": 128}, ["128", "down_proj", "192"]),
        ({"scheme": "w4a16-g32-min"}, ["gptq", "zero points"]),
        ({"rules": ["lm_haed=keep"]}, ["lm_haed", "matches no tensor"]),
        ({"rules": ["lm_head=w4a16-g64"]}, ["lm_head", "floats only"]),
        ({"rules": ["weight=keep"]}, ["nothing would be quantized"]),
        ({"type": "Q4_0", "format": "gptq"}, ["--type"]),
        ({"type": "F16"}, ["nothing to quantize"]),
        ({"type": "Q9_9"}, ["Q9_9"]),
        ({"format": "hf"}, ["hf"]),
        ({"format": "gptqq"}, ["gptqq"]),
        ({"keep_dtype": "float15"}, ["float15"]),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_remedy(folder, flags, words) -> None:
    with pytest.raises(UsageError) as caught:
        plan(folder, **flags)
    for word in words:
        assert word in f"{caught.value} {caught.value.hint}"
    assert (
        caught.value.hint
        or "keeps every tensor" in str(caught.value)
        or "rules keep" in str(caught.value)
    )


def test_the_source_is_never_the_output(folder) -> None:
    with pytest.raises(UsageError, match="source itself"):
        plan(folder, folder)


def test_a_quantized_source_is_refused(folder, tmp_path) -> None:
    import json
    import shutil

    copy = tmp_path / "fp8"
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="already quantized by fp8"):
        plan(copy)
