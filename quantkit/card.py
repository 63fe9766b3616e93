"""The model card that goes with every output."""

from quantkit import __version__
from quantkit.core.recipe import Recipe
from quantkit.plan import QuantizePlan


def model_card(plan: QuantizePlan, recipe: Recipe) -> str:
    """README.md of an output: what it is, how it was made, how to use it."""
    name = plan.output.name
    methods = ", ".join(entry.name for entry in recipe.methods)
    rules = "".join(f"| rule | `{rule.pattern}={rule.scheme}` |\n" for rule in recipe.rules)
    wanted = recipe.calibration
    data = f"{', '.join(wanted.datasets)}: {wanted.num_samples} windows of {wanted.seq_len} tokens"
    loader = {
        "gptq": "transformers with gptqmodel and optimum, vLLM (4-bit symmetric), quantkit",
        "gguf": "llama.cpp and programs built on it, quantkit",
    }.get(plan.format.name, "quantkit")
    return f"""---
tags: [quantized, quantkit]
---
# {name}

{plan.checkpoint.path.resolve().name}, quantized with quantkit {__version__}.

| | |
| --- | --- |
| method | {methods} |
| scheme | {plan.scheme} |
{rules}| container | {plan.format.name} |
| bytes of all tensors | {plan.num_bytes:,} |
| bits per weight, file | {plan.bits_per_weight():.3f} |
| bits per weight, linears | {plan.bits_per_weight(body=True):.3f} |
| calibration | {data} |
| recipe hash | `{recipe.hash()}` |

Loads in: {loader}.

    quantkit eval {name} --baseline ORIGINAL
    quantkit serve {name}

`quantkit.json` holds the recipe, the digests of the data and the error of every tensor.
"""
