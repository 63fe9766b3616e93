"""Evaluation: perplexity, and what a file cost in quality against the model it was made from."""

from quantkit.eval.compare import compare, evaluate
from quantkit.eval.gates import Verdict, check, parse_gates
from quantkit.eval.report import write_html, write_json
from quantkit.eval.result import EvalResult
from quantkit.eval.subject import Subject

__all__ = [
    "EvalResult",
    "Subject",
    "Verdict",
    "check",
    "compare",
    "evaluate",
    "parse_gates",
    "write_html",
    "write_json",
]
