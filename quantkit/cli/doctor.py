"""quantkit doctor: what this machine offers, and what quantkit makes of it."""

import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import rich_click as click

from quantkit import __version__
from quantkit.cli.command import Run, Verb
from quantkit.core.report import environment

_CPU_FEATURES = (
    "sse4_2",
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "i8mm",
    "sve",
    "bf16",
)
_SCHEMES = ("w4a16-g128", "w4a16-g32", "w4a16-g128-asym", "w8a16-g32", "w8a8")


@click.command("doctor", cls=Verb)
@click.pass_obj
def command(run: Run) -> None:
    """Versions, processor, memory, devices and the kernels chosen for them.

    Put the output of `quantkit doctor --json` into a bug report.
    """
    found = diagnose()
    run.report.result = found
    say = run.console
    say.table(("version of", ""), found["versions"].items())
    say.data("")
    say.table(("machine", ""), [(k, _text(v)) for k, v in found["machine"].items()])
    say.data("")
    say.table(
        ("op", "problem", "kernel", "backend", "answer"),
        [
            (row["op"], row["problem"], row["kernel"], row["backend"], _answer(row))
            for row in found["kernels"]
        ],
    )
    say.data("")
    variables = found["variables"].items() or [("none set", "")]
    say.table(("environment variable", ""), variables)


def diagnose() -> dict[str, Any]:
    """Versions, machine, kernels with their answers, and QUANTKIT_ variables, as plain data."""
    has_torch = find_spec("torch") is not None
    return {
        "versions": {"quantkit": __version__, **environment()},
        "machine": {**_machine(), **(_torch_facts() if has_torch else {"torch": "not installed"})},
        "kernels": _kernels() if has_torch else [],
        "variables": {
            name: "***" if name.endswith("_API_KEY") else value
            for name, value in sorted(os.environ.items())
            if name.startswith("QUANTKIT_")
        },
    }


def _machine() -> dict[str, Any]:
    info = _read("/proc/cpuinfo")
    fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    named = {key.strip().lower(): value.strip() for key, value in fields.items()}
    flags = set((named.get("flags") or named.get("features") or "").split())
    return {
        "system": platform.platform(),
        "python": sys.executable,
        "processor": named.get("model name") or platform.processor() or platform.machine(),
        "processor features": [name for name in _CPU_FEATURES if name in flags],
        "cores": os.cpu_count(),
        "cores usable": _usable_cores(),
        "memory bytes": _memory("MemTotal"),
        "memory available bytes": _memory("MemAvailable"),
        "memory limit bytes": _number(_read("/sys/fs/cgroup/memory.max")),
    }


def _torch_facts() -> dict[str, Any]:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "torch threads": torch.get_num_threads(),
        "torch processor level": torch.backends.cpu.get_cpu_capability(),
        "GPUs": [
            f"{torch.cuda.get_device_name(i)}, "
            f"{torch.cuda.get_device_properties(i).total_memory} bytes"
            for i in range(count)
        ],
    }


def _kernels() -> list[dict[str, Any]]:
    import torch

    from quantkit.core.scheme import Scheme
    from quantkit.kernels import LinearProblem, explain

    devices = {"cpu": torch.float32}
    if torch.cuda.is_available():
        devices["cuda"] = torch.float16
    rows = []
    for device, dtype in devices.items():
        for text in _SCHEMES:
            problem = LinearProblem(Scheme.parse(text), 4096, 4096, dtype, device)
            answers = explain(problem)
            chosen = next(i for i, row in enumerate(answers) if row["refused"] is None)
            rows += [
                {"problem": f"{text} {device}", "chosen": i == chosen, **row}
                for i, row in enumerate(answers)
            ]
    return rows


def _answer(row: dict[str, Any]) -> str:
    if row["chosen"]:
        return "chosen"
    return f"refused: {row['refused']}" if row["refused"] else "accepted, but another goes before"


def _usable_cores() -> float:
    """Cores that this process may use: its affinity and the limit of its container."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    limit = _number(quota)
    cores = float(allowed or 1)
    return min(cores, limit / int(period)) if limit else cores


def _memory(field: str) -> int | None:
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return "unknown or none" if value is None else str(value)
