"""GGUF: one file with metadata, tokenizer and weights, the container of llama.cpp."""

from quantkit.formats.gguf.format import FORMAT
from quantkit.formats.gguf.layout import check_plan
from quantkit.formats.gguf.types import side_schemes

__all__ = ["FORMAT", "check_plan", "side_schemes"]
