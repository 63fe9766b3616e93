"""The decoder block against transformers, in float64 and float32, for every family."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from quantkit.archs import model_config
from quantkit.core.config import ModelConfig
from quantkit.models.attention import attend, attend_windows
from quantkit.models.block import block, dense_linear
from quantkit.models.norm import rms_norm
from quantkit.models.rope import rotary
from tests.helpers.tiny import ARCHS, reference_logits, tiny_model


def forward(folder: Path, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Logits [L, V] of one window, straight from the file's tensors."""
    config = model_config(json.loads((folder / "config.json").read_text()))
    assert isinstance(config, ModelConfig)
    weights = {k: v.to(dtype) for k, v in load_file(folder / "model.safetensors").items()}
    arch = config.arch
    x = weights[f"{arch.embed}.weight"][ids]
    turn = rotary(config.rope, torch.arange(len(ids)))
    for layer in range(config.num_layers):
        prefix = arch.block_prefix(layer)
        own = {k[len(prefix) :]: v for k, v in weights.items() if k.startswith(prefix)}

        def mix(q, k, v, layer=layer):
            return attend(q, k, v, config.attention_scale, config.windows[layer])

        x = block(config, own, x, turn, mix, dense_linear(own))
    x = rms_norm(x, weights[f"{arch.norm}.weight"], config.norm_eps)
    head = arch.embed if config.tie_embeddings else arch.head
    return x @ weights[f"{head}.weight"].T


CASES = [(arch, {}) for arch in ARCHS] + [
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"head_dim": 32, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
                "rope_theta": 5e5,
            }
        },
    ),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    ("phi3", {"sliding_window": 24, "num_key_value_heads": 4}),
]


@pytest.mark.parametrize(("arch", "changes"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_logits_equal_transformers(arch: str, changes: dict, tmp_path: Path) -> None:
    folder = tiny_model(arch, tmp_path / "m", **changes)
    ids = torch.randint(0, 512, (130,), generator=torch.Generator().manual_seed(1))
    # transformers keeps its norms and softmax in float32 even in a float64 model
    for dtype, bound in ((torch.float64, 2e-5), (torch.float32, 1e-4)):
        want = reference_logits(folder, ids[None], dtype)[0]
        got = forward(folder, ids, dtype)
        assert (got - want).abs().max() <= bound * want.std()


def naive(q, k, v, scale, window):
    """Attention by loops in float64; the last query stands at the last key."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    repeat = q.shape[1] // k.shape[1]
    for i in range(q.shape[0]):
        at = k.shape[0] - q.shape[0] + i
        low = 0 if window is None else max(0, at - window + 1)
        for h in range(q.shape[1]):
            keys, values = (x[low : at + 1, h // repeat].double() for x in (k, v))
            if len(keys):
                out[i, h] = torch.softmax(keys @ q[i, h].double() * scale, 0) @ values
    return out


@pytest.mark.parametrize("tq", [1, 5, 16])
@pytest.mark.parametrize("tk", [1, 16, 17, 64])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 1), (4, 2), (4, 4)])
def test_attend_equals_naive(tq: int, tk: int, heads: int, kv_heads: int) -> None:
    gen = torch.Generator().manual_seed(tq * 100 + tk)
    for dim in (8, 16, 63, 80):
        q = torch.randn(tq, heads, dim, generator=gen)
        k, v = (torch.randn(tk, kv_heads, dim, generator=gen) for _ in range(2))
        for window in (None, 7):
            got = attend(q, k, v, dim**-0.5, window)
            assert (got - naive(q, k, v, dim**-0.5, window)).abs().max() < 1e-5


def test_attend_bfloat16() -> None:
    gen = torch.Generator().manual_seed(0)
    q = torch.randn(5, 4, 16, generator=gen).bfloat16()
    k, v = (torch.randn(17, 2, 16, generator=gen).bfloat16() for _ in range(2))
    assert (attend(q, k, v, 0.25).double() - naive(q, k, v, 0.25, None)).abs().max() < 2e-2


def test_documents_see_only_themselves() -> None:
    gen = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 12, 2, 8, generator=gen) for _ in range(3))
    docs = torch.tensor([[0] * 5 + [1] * 7])
    got = attend_windows(q, k, v, 0.3, None, docs)[0]
    for part in (slice(0, 5), slice(5, 12)):
        want = attend(q[0, part], k[0, part], v[0, part], 0.3)
        assert (got[part] - want).abs().max() < 1e-6
