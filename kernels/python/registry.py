"""Which kernel solves a problem: the highest priority that accepts it."""

from importlib import import_module

from quantkit.kernels.ops import LinearKernel, LinearProblem

_LINEAR = ("quantkit.kernels.reference.linear",)


def linear_kernels() -> list[LinearKernel]:
    """Every linear kernel, best first."""
    found: list[LinearKernel] = [import_module(path).KERNEL for path in _LINEAR]
    return sorted(found, key=lambda kernel: -kernel.priority)


def choose_linear(problem: LinearProblem) -> LinearKernel:
    """The kernel for a problem; the reference accepts everything, so there always is one."""
    return next(k for k in linear_kernels() if k.accepts(problem) is None)


def explain(problem: LinearProblem) -> list[dict[str, str | None]]:
    """For each kernel, best first: its name and why it refuses the problem (None: it accepts)."""
    return [
        {"op": "linear", "kernel": k.name, "backend": k.backend, "refused": k.accepts(problem)}
        for k in linear_kernels()
    ]
