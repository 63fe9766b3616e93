"""Texts that tell tokenizers apart: scripts, emoji, code, digits, white space, special tokens."""

import random
from collections.abc import Sequence

_PIECES = (
    "Hello world", " the", "don't", "I'LL", "we've", "naïve café", "Größe straße",
    "日本語のテキスト", "中文字符测试", "한국어", "Привет мир", "مرحبا بالعالم", "שלום",
    "हिन्दी", "ไทย", "ελληνικά", "😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "e\u0301", "\u212b", "ﬁ",
    "½ ² ³", "١٢٣", "Ⅷ", "0", "42", "2024", "123456789", "3.14159", "1,000,000", "0x1F", " 7",
    "  8", "   99", "x1y22z333", "\n", "\n\n", "\r\n", "\t", "\t\t", " ", "  ", "    ", " \n ",
    "\u00a0", "\u3000", "\u200b", "def f(x):\n    return x", "for (int i = 0; i < n; ++i) {",
    "a = b + c * d", "<html><body>", "{'key': [1, 2]}", "$HOME/bin", "user@example.com",
    "https://example.org/a?b=c#d", "C++", "C#", "...", "?!", "--", "——", "“quoted”", "'", "''",
    "\"", "`code`", "\\", "|", "~", "^", "#hashtag", "@name", "%d", "a_b_c", "snake_case",
    "camelCase", "PascalCase", "UPPER", "lowercase", "MiXeD", "ß", "İ", "ǅ", "\ufffd", "\u0000",
    "\x1f",
)  # fmt: skip


def odd_texts(count: int = 200, *, special: Sequence[str] = (), seed: int = 0) -> list[str]:
    """The pieces alone, then random mixtures of them, with the special tokens where given."""
    generator = random.Random(seed)
    pieces = [*_PIECES, *special]
    texts = list(pieces)
    while len(texts) < count:
        number = generator.randint(2, 9)
        between = generator.choice(("", "", " ", "  ", "\n"))
        texts.append(between.join(generator.choices(pieces, k=number)))
    return texts[: max(count, len(pieces))]
