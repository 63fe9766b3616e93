"""Qwen 2 and 2.5: biases on q, k and v; windows on the upper layers where enabled."""

from quantkit.archs.parts import SEPARATE_GGUF_NAMES, SEPARATE_LINEARS, SEPARATE_SMOOTH
from quantkit.core.arch import Arch

ARCH = Arch(
    name="qwen2",
    model_types=("qwen2",),
    hf_class="Qwen2ForCausalLM",
    linears=SEPARATE_LINEARS,
    smooth=SEPARATE_SMOOTH,
    gguf_arch="qwen2",
    gguf_names=SEPARATE_GGUF_NAMES,
    biased=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
)
