"""How byte-level tokenizers cut text into words: ``tokenizer.ggml.pre`` against tokenizer.json.

GGUF names the cut, tokenizer.json spells it out as steps. Both are brought to one form, the regular
expressions that cut one after another, and one table joins them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantkit.errors import ModelError

GPT2 = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # ByteLevel's own
)
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_DIGIT = r"\p{N}"

LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_MARKS}|{_TAIL}"
QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_MARKS}|{_TAIL}"


def _cased(ending: str) -> str:
    """Words of upper then lower case letters, each with an optional ending."""
    start = r"[^\r\n\p{L}\p{N}]?"
    return f"{start}{_UPPER}*{_LOWER}+{ending}|{start}{_UPPER}+{_LOWER}*{ending}"


TEKKEN = rf"{_cased('')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
GPT4O = rf"{_cased(_CONTRACTIONS + '?')}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_TAIL}"
).replace('\\"', '"')


@dataclass(frozen=True)
class PreTokenizer:
    """One way of cutting text.

    Attributes:
        names: values of ``tokenizer.ggml.pre`` that mean it; the first is the one written.
        steps: regular expressions; each cuts the pieces that the one before left.
        ignore_merges: a piece that is itself a token is not split further.
        add_bos: whether a start token is added when the metadata does not say.
        normalizer: Unicode normalization of the Hugging Face tokenizers of that name.
    """

    names: tuple[str, ...]
    steps: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    normalizer: str | None = None


TABLE = (
    PreTokenizer(("gpt-2", "phi-2", "jais", "trillion", "exaone4", "mellum", "a.x-4.0"), (GPT2,)),
    PreTokenizer(
        ("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"),
        (_DIGIT, GPT2),
    ),
    PreTokenizer(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        (LLAMA3,),
        ignore_merges=True,
        add_bos=True,
    ),
    PreTokenizer(("smaug-bpe", "dbrx", "glm4", "chatglm-bpe"), (LLAMA3,)),
    PreTokenizer(("qwen2",), (QWEN2,), normalizer="NFC"),
    PreTokenizer(
        ("deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "kormo", "solar-open", "grok-2"),
        (QWEN2,),
    ),
    PreTokenizer(("tekken",), (TEKKEN,), ignore_merges=True, add_bos=True),
    PreTokenizer(("gpt-4o", "llama4", "kanana2", "minimax-m2"), (GPT4O,)),
    PreTokenizer(
        ("deepseek-v3", "hunyuan-dense", "joyai-llm"),
        (r"\p{N}{1,3}", "[一-龥\u3040-ゟ\u30a0-ヿ]+", _DEEPSEEK3),
    ),
    PreTokenizer(
        ("deepseek-coder",),
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", _DIGIT),
    ),
    PreTokenizer(("default",), (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
)


def by_name(name: str, where: object) -> PreTokenizer:
    """The cut that a GGUF file names.

    Raises:
        ModelError: the name is not known.
    """
    found = next((row for row in TABLE if name in row.names), None)
    if found is None:
        known = ", ".join(row.names[0] for row in TABLE)
        raise ModelError(
            f"{where}: tokenizer.ggml.pre {name!r} is not known",
            hint=f"known ones and their aliases: {known}; copy tokenizer.json from the original",
        )
    return found


def by_structure(tokenizer: Mapping[str, Any]) -> PreTokenizer | None:
    """The cut of a tokenizer.json, or None when GGUF has no name for it."""
    steps = _steps(tokenizer.get("pre_tokenizer"))
    if steps is None:
        return None
    ignore = bool(tokenizer.get("model", {}).get("ignore_merges"))
    rows = [row for row in TABLE if row.steps == steps and row.ignore_merges == ignore]
    normalizer = normalizer_name(tokenizer)
    return next((row for row in rows if row.normalizer == normalizer), rows[0] if rows else None)


def normalizer_name(tokenizer: Mapping[str, Any]) -> str | None:
    """Type of the normalizer of a tokenizer.json, None for none and for an empty sequence."""
    found = tokenizer.get("normalizer")
    if found is None or (found["type"] == "Sequence" and not found["normalizers"]):
        return None
    if found["type"] == "Sequence" and len(found["normalizers"]) == 1:
        found = found["normalizers"][0]
    return str(found["type"])


def to_json(cut: PreTokenizer) -> dict[str, Any]:
    """The ``pre_tokenizer`` of tokenizer.json."""
    steps = list(cut.steps)
    own = steps[-1] == GPT2
    parts: list[dict[str, Any]] = []
    for step in steps[:-1] if own else steps:
        if step == _DIGIT:
            parts.append({"type": "Digits", "individual_digits": True})
        else:
            pattern = {"Regex": step}
            parts.append(
                {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
            )
    parts.append(byte_level(use_regex=own))
    return parts[0] if len(parts) == 1 else {"type": "Sequence", "pretokenizers": parts}


def byte_level(*, use_regex: bool) -> dict[str, Any]:
    """The step of tokenizer.json that turns bytes into printable characters."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _steps(node: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    """Regular expressions of a ``pre_tokenizer``; None when a step is of another kind."""
    if node is None:
        return None
    parts = node["pretokenizers"] if node["type"] == "Sequence" else [node]
    steps: list[str] = []
    for index, part in enumerate(parts):
        match part:
            case {"type": "Digits", "individual_digits": individual}:
                steps.append(_DIGIT if individual else r"\p{N}+")
            case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": str(behavior)}:
                inverted = bool(part.get("invert"))
                if (behavior, inverted) not in (("Isolated", False), ("Removed", True)):
                    return None
                steps.append(pattern.replace("\r", r"\r").replace("\n", r"\n"))
            case {"type": "ByteLevel"} if index == len(parts) - 1:
                if part.get("add_prefix_space", True):
                    return None
                if part.get("use_regex", True):
                    steps.append(GPT2)
                return tuple(steps)
            case _:
                return None
    return None
