"""Pieces that several families share."""

from quantkit.core.arch import LinearSpec, SmoothPair

SEPARATE_LINEARS = (
    LinearSpec("self_attn.q_proj", "q", "attn_in"),
    LinearSpec("self_attn.k_proj", "k", "attn_in"),
    LinearSpec("self_attn.v_proj", "v", "attn_in"),
    LinearSpec("self_attn.o_proj", "o", "attn_out"),
    LinearSpec("mlp.gate_proj", "gate", "mlp_in"),
    LinearSpec("mlp.up_proj", "up", "mlp_in"),
    LinearSpec("mlp.down_proj", "down", "mlp_mid"),
)

SEPARATE_SMOOTH = (
    SmoothPair("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    SmoothPair("self_attn.v_proj", ("self_attn.o_proj",)),
    SmoothPair("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
    SmoothPair("mlp.up_proj", ("mlp.down_proj",)),
)

SEPARATE_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
