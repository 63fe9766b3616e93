"""Quantization methods, one file each."""
