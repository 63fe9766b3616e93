"""Llama 1, 2 and 3, SmolLM2 and others of that shape."""

from quantkit.archs.parts import SEPARATE_GGUF_NAMES, SEPARATE_LINEARS, SEPARATE_SMOOTH
from quantkit.core.arch import Arch

ARCH = Arch(
    name="llama",
    model_types=("llama",),
    hf_class="LlamaForCausalLM",
    linears=SEPARATE_LINEARS,
    smooth=SEPARATE_SMOOTH,
    gguf_arch="llama",
    gguf_names=SEPARATE_GGUF_NAMES,
    gguf_permute=True,
)
