"""Qwen 3 (dense): per-head norms of queries and keys, head size given in the config."""

from quantkit.archs.parts import SEPARATE_GGUF_NAMES, SEPARATE_LINEARS, SEPARATE_SMOOTH
from quantkit.core.arch import Arch

ARCH = Arch(
    name="qwen3",
    model_types=("qwen3",),
    hf_class="Qwen3ForCausalLM",
    linears=SEPARATE_LINEARS,
    smooth=SEPARATE_SMOOTH,
    gguf_arch="qwen3",
    gguf_names={
        **SEPARATE_GGUF_NAMES,
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
    },
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
)
