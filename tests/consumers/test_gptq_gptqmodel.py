"""GPTQ folders load in transformers with gptqmodel, and give the logits of quantkit's runtime."""

from pathlib import Path

import pytest
import torch

from quantkit.core.recipe import resolve_recipe
from quantkit.formats import open_model
from quantkit.pipeline import quantize
from quantkit.runtime.model import load_model
from tests.helpers.tiny import tiny_model

pytestmark = [
    pytest.mark.consumers,
    pytest.mark.timeout(600),
    # The library and what it imports warn on import and on load; what counts is its logits.
    pytest.mark.filterwarnings("ignore"),
]

# The consumer's kernel decodes to float16; a wider initialization would amplify that rounding.
SHAPE = {"hidden_size": 128, "intermediate_size": 256, "std": 0.1}
TOKENS = torch.randint(3, 500, (2, 48), generator=torch.Generator().manual_seed(0))


def consumer_logits(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    """Logits of transformers with gptqmodel's torch kernel in float32."""
    from transformers import AutoModelForCausalLM, GPTQConfig

    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        device_map="cpu",
        quantization_config=GPTQConfig(bits=4, backend="torch"),
    ).eval()
    quantized = [m for m in model.modules() if "Torch" in type(m).__name__]
    assert quantized, "no quantized linear was made: the file was read as a float model"
    with torch.inference_mode():
        return model(ids).logits.float()


def quantized(model: Path, output: Path, settings: tuple[str, ...] = (), **flags: object) -> Path:
    recipe = resolve_recipe(
        str(model), overrides={"num_samples": 8, "seq_len": 64, **flags}, settings=settings
    )
    quantize(recipe, output=output)
    return output


@pytest.mark.parametrize(
    "flags",
    [
        {"scheme": "w4a16-g64"},
        {"scheme": "w8a16-g32"},
        {"scheme": "w4a16-g32-asym"},
        {"scheme": "w2a16-g32"},
        {"scheme": "w3a16-g32-asym"},
        {"scheme": "w4a16-grow"},
        {"scheme": "w4a16-g64", "rules": [r"layers\.1\.mlp=keep"]},
    ],
    ids=lambda flags: "-".join(str(v) for v in flags.values()),
)
def test_tiny_models(flags: dict[str, object], tmp_path: Path) -> None:
    source = tiny_model("llama", tmp_path / "m", **SHAPE)
    folder = quantized(source, tmp_path / "out", **flags)
    want = load_model(open_model(folder)).window_logits(TOKENS)
    assert (consumer_logits(folder, TOKENS) - want).abs().max() <= 0.01 * want.std()


@pytest.mark.parametrize("arch", ["mistral", "qwen2", "qwen3", "phi3"])
def test_other_families(arch: str, tmp_path: Path) -> None:
    source = tiny_model(arch, tmp_path / "m", **SHAPE)
    folder = quantized(source, tmp_path / "out", scheme="w4a16-g64")
    want = load_model(open_model(folder)).window_logits(TOKENS)
    assert (consumer_logits(folder, TOKENS) - want).abs().max() <= 0.01 * want.std()


def test_a_real_model(smollm2: Path, tmp_path: Path) -> None:
    folder = quantized(smollm2, tmp_path / "out", scheme="w4a16-g64")
    want = load_model(open_model(folder)).window_logits(TOKENS)
    got = consumer_logits(folder, TOKENS)
    difference = float((got - want).abs().max() / want.std())
    print(f"largest difference {difference:.5f} standard deviations")
    assert difference <= 0.01
