"""Tiny random models with a trained tokenizer, saved as Hugging Face folders."""

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers

SHAPE = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
EXTRA: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 16},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"head_dim": 32},
    "phi3": {"rope_theta": 10000.0, "sliding_window": None},
}
ARCHS = tuple(EXTRA)

SPECIAL = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = Path(tokenizers.__file__).read_text(encoding="utf-8") + Path(json.__file__).read_text(
    encoding="utf-8"
)


def tiny_tokenizer(vocab_size: int = 512) -> tokenizers.Tokenizer:
    """Byte-level BPE with special tokens first, trained on two library sources."""
    tok = tokenizers.Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tok.train_from_iterator([TEXT], trainer)
    return tok


def save_tokenizer(folder: Path, vocab_size: int = 512) -> None:
    """Write tokenizer.json, tokenizer_config.json, chat template and generation config."""
    tiny_tokenizer(vocab_size).save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 256,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    (folder / "generation_config.json").write_text(
        json.dumps({"bos_token_id": 0, "eos_token_id": [1, 4], "pad_token_id": 2}), encoding="utf-8"
    )


def tiny_model(arch: str, folder: Path, *, seed: int = 0, std: float = 0.3, **changes: Any) -> Path:
    """Save a random model of a family and return its folder.

    The initialization is wide, since near-constant logits hide faults.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {**SHAPE, **EXTRA[arch], **changes}
    config = AutoConfig.for_model(arch, **shape)
    config.dtype = torch.float32
    model = AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.copy_(1.0 + 0.2 * noise)
            else:
                parameter.copy_(std * noise)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    save_tokenizer(folder, config.vocab_size if config.vocab_size <= 512 else 512)
    return folder


def reference_logits(folder: Path, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Logits [B, L, V] of transformers with eager attention."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    with torch.inference_mode():
        return model.eval()(ids).logits
