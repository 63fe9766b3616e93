"""Mistral: llama's shape, with sliding windows in the first release."""

from quantkit.archs.parts import SEPARATE_GGUF_NAMES, SEPARATE_LINEARS, SEPARATE_SMOOTH
from quantkit.core.arch import Arch

ARCH = Arch(
    name="mistral",
    model_types=("mistral",),
    hf_class="MistralForCausalLM",
    linears=SEPARATE_LINEARS,
    smooth=SEPARATE_SMOOTH,
    gguf_arch="llama",
    gguf_names=SEPARATE_GGUF_NAMES,
    gguf_permute=True,
)
