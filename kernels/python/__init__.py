"""Kernels: implementations of a few operations, chosen by problem, all held to the reference."""

from quantkit.kernels.ops import LinearKernel, LinearProblem
from quantkit.kernels.packed import PackedWeight
from quantkit.kernels.registry import choose_linear, explain, linear_kernels

__all__ = [
    "LinearKernel",
    "LinearProblem",
    "PackedWeight",
    "choose_linear",
    "explain",
    "linear_kernels",
]
