"""Phi-3: q/k/v in one fused linear, gate and up in another."""

from quantkit.core.arch import Arch, LinearSpec, SmoothPair

ARCH = Arch(
    name="phi3",
    model_types=("phi3",),
    hf_class="Phi3ForCausalLM",
    linears=(
        LinearSpec("self_attn.qkv_proj", "qkv", "attn_in"),
        LinearSpec("self_attn.o_proj", "o", "attn_out"),
        LinearSpec("mlp.gate_up_proj", "gate_up", "mlp_in"),
        LinearSpec("mlp.down_proj", "down", "mlp_mid"),
    ),
    smooth=(
        SmoothPair("input_layernorm", ("self_attn.qkv_proj",)),
        SmoothPair("post_attention_layernorm", ("mlp.gate_up_proj",)),
    ),
    gguf_arch="phi3",
    gguf_names={
        "input_layernorm": "attn_norm",
        "self_attn.qkv_proj": "attn_qkv",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    },
)
