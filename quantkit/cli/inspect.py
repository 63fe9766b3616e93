"""quantkit inspect: what a model's files hold, from their headers."""

import json
from collections import defaultdict
from math import prod
from typing import TYPE_CHECKING, Any

import rich_click as click

from quantkit.cli.command import Run, Verb
from quantkit.cli.types import MODEL
from quantkit.errors import ModelError

if TYPE_CHECKING:
    from quantkit.core.checkpoint import Checkpoint

_RECORD = "quantkit.json"  # a file of a folder, a key of a GGUF file's metadata
_CONFIG = (
    "num_layers",
    "hidden_size",
    "intermediate_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "vocab_size",
    "max_positions",
    "tie_embeddings",
)


@click.command("inspect", cls=Verb)
@click.argument("path", type=MODEL, metavar="PATH")
@click.option("--revision", help="Branch, tag or commit of a hub model.")
@click.pass_obj
def command(run: Run, /, *, path: str, revision: str | None) -> None:
    """Show what is in PATH: format, architecture, every tensor, sizes, tokenizer.

    Only headers are read, no tensor is; a chat template is never run.
    """
    from quantkit.formats import open_model

    found = describe(open_model(path, revision=revision))
    run.report.result = found
    say = run.console
    say.table(
        ("tensor", "shape", "stored as", "bytes"),
        [
            (t["name"], "x".join(map(str, t["shape"])), t["stored"], t["bytes"])
            for t in found["tensors"]
        ],
    )
    say.data("")
    say.table(
        ("stored as", "tensors", "parameters", "bytes"),
        [(name, *totals.values()) for name, totals in found["types"].items()],
    )
    say.data("")
    say.table(("model", ""), _facts(found))


def describe(checkpoint: "Checkpoint") -> dict[str, Any]:
    """Everything about a checkpoint that its headers say, as plain data."""
    model = checkpoint.model
    infos = list(checkpoint.tensors.values())
    types: dict[str, dict[str, int]] = defaultdict(
        lambda: {"tensors": 0, "parameters": 0, "bytes": 0}
    )
    for info in infos:
        totals = types[info.stored]
        totals["tensors"] += 1
        totals["parameters"] += prod(info.shape)
        totals["bytes"] += info.nbytes
    body = [t for t in infos if model is not None and model.arch.is_linear_weight(t.name)]
    return {
        "path": str(checkpoint.path),
        "format": checkpoint.format,
        "quant_method": checkpoint.quant_method,
        "architecture": model.arch.name if model else None,
        "model_type": checkpoint.config.get("model_type"),
        "config": {key: getattr(model, key) for key in _CONFIG} if model else {},
        "parameters": sum(prod(t.shape) for t in infos),
        "bytes": sum(t.nbytes for t in infos),
        "bits_per_weight": _bits_per_weight([(t.nbytes, t.shape) for t in infos]),
        "bits_per_weight_body": _bits_per_weight([(t.nbytes, t.shape) for t in body]),
        "types": dict(types),
        "tokenizer": _tokenizer(checkpoint),
        "companions": sorted(checkpoint.companion_reader()),
        "quantkit_json": _record(checkpoint),
        "tensors": [
            {
                "name": t.name,
                "shape": list(t.shape),
                "stored": t.stored,
                "scheme": None if t.scheme is None else str(t.scheme),
                "bytes": t.nbytes,
            }
            for t in infos
        ],
    }


def _bits_per_weight(tensors: list[tuple[int, tuple[int, ...]]]) -> float | None:
    weights = sum(prod(shape) for _, shape in tensors)
    return 8 * sum(nbytes for nbytes, _ in tensors) / weights if weights else None


def _tokenizer(checkpoint: "Checkpoint") -> dict[str, Any]:
    from quantkit.core.tokenizer import Tokenizer

    try:
        tokenizer = Tokenizer.from_checkpoint(checkpoint)
    except ModelError as error:  # the rest of the file is still worth showing
        return {"error": error.message}
    return {
        "vocab_size": tokenizer.vocab_size,
        "special": tokenizer.special,
        "eos_ids": list(tokenizer.eos_ids),
        "has_chat_template": tokenizer.has_chat_template,
    }


def _record(checkpoint: "Checkpoint") -> dict[str, Any] | None:
    """What quantkit wrote about the model when it made the file, or None."""
    path = checkpoint.path / _RECORD
    text = checkpoint.metadata.get(_RECORD)
    if text is None and path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
    if not isinstance(text, str):
        return None
    try:
        record = json.loads(text)
    except ValueError as error:
        return {"error": f"not valid JSON: {error}"}
    return record if isinstance(record, dict) else {"error": "does not hold an object"}


def _facts(found: dict[str, Any]) -> list[tuple[str, object]]:
    tokenizer = found["tokenizer"]
    rows: list[tuple[str, object]] = [
        ("path", found["path"]),
        ("format", found["format"]),
        ("quantized by", found["quant_method"]),
        ("architecture", found["architecture"] or f"{found['model_type']} (not supported)"),
    ]
    rows += [(key.replace("_", " "), str(value)) for key, value in found["config"].items()]
    rows += [
        ("parameters", str(found["parameters"])),
        ("bytes", str(found["bytes"])),
        ("bits per weight", _bits(found["bits_per_weight"])),
        ("bits per weight of the body", _bits(found["bits_per_weight_body"])),
    ]
    if "error" in tokenizer:
        rows.append(("tokenizer", tokenizer["error"]))
    else:
        rows.append(("tokenizer", f"{tokenizer['vocab_size']} tokens"))
        rows += [
            (name.replace("_", " "), repr(text)) for name, text in tokenizer["special"].items()
        ]
        rows.append(("end of text ids", ", ".join(map(str, tokenizer["eos_ids"]))))
        rows.append(("chat template", "yes" if tokenizer["has_chat_template"] else "no"))
    rows.append(("files beside it", ", ".join(found["companions"])))
    if found["quantkit_json"] is not None:
        record = {
            k: v for k, v in found["quantkit_json"].items() if not isinstance(v, (dict, list))
        }
        rows += [(f"quantkit.json {key}", str(value)) for key, value in record.items()]
    return rows


def _bits(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"
