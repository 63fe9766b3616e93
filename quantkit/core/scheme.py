"""Scheme: what the numbers of one quantized tensor may be.

A scheme says nothing about the method that chose the numbers, the file that holds them or the
kernel that multiplies them. It prints and parses: ``w4a16-g64``, ``w4a16-g128-asym``, ``w8a8``.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal, Self

from quantkit.errors import UsageError

Offset = Literal["none", "zero", "minimum"]
Table = Literal["uniform"]

WHOLE_ROW = -1
"""Group size that stands for one group over the whole row."""

_DTYPE_BITS = {"f16": 16, "bf16": 16, "f32": 32}
_BITS = (2, 3, 4, 5, 6, 8)
_PATTERN = re.compile(
    r"w(?P<bits>\d+)a(?P<act>\d+)(-g(?P<group>\d+|row))?(-(?P<offset>asym|min))?"
    r"(-(?P<dtype>bf16|f32))?(-(?P<static>static))?"
)
# GGUF's one-level block types are plain group-32 schemes; the names are aliases.
_ALIASES = {
    "q4_0": "w4a16-g32",
    "q4_1": "w4a16-g32-min",
    "q5_0": "w5a16-g32",
    "q5_1": "w5a16-g32-min",
    "q8_0": "w8a16-g32",
}


@dataclass(frozen=True)
class ScaleLevel:
    """One level of scales: one value of ``dtype`` for every ``group`` columns (-1: whole row)."""

    group: int
    dtype: str = "f16"

    def num_groups(self, columns: int) -> int:
        """Number of groups in a row of ``columns`` values; the last one may be short."""
        return 1 if self.group == WHOLE_ROW else -(-columns // self.group)

    @property
    def bits(self) -> int:
        """Bits that one scale takes."""
        return _DTYPE_BITS[self.dtype]


@dataclass(frozen=True)
class ActScheme:
    """How the activations of a linear are rounded: bits, one scale per token or tensor, when."""

    bits: int = 8
    per: Literal["token", "tensor"] = "token"
    dynamic: bool = True


@dataclass(frozen=True)
class Scheme:
    """Value grid of a quantized tensor.

    Decode of code c in a group with scale s (levels multiplied together):
    offset ``none``: s * (c - 2**(bits-1)); ``zero``: s * (c - z); ``minimum``: s * c + m.

    Attributes:
        bits: bits of a code, 2 to 8.
        table: what a code stands for; ``uniform`` means the integer itself.
        offset: what is subtracted or added, see above.
        levels: scale levels, finest first.
        act: rounding of the activations, or None for weight-only schemes.
        outliers: at most this many input columns are kept in float beside the codes, or None.
    """

    bits: int
    table: Table = "uniform"
    offset: Offset = "none"
    levels: tuple[ScaleLevel, ...] = (ScaleLevel(128),)
    act: ActScheme | None = None
    outliers: int | None = None

    def __post_init__(self) -> None:
        assert self.bits in _BITS, self.bits

    @property
    def group(self) -> int:
        """Columns that share one finest scale; -1 for a whole row."""
        return self.levels[0].group

    @property
    def max_code(self) -> int:
        """Largest code."""
        return (1 << self.bits) - 1

    @property
    def center(self) -> int:
        """Code that stands for zero when ``offset`` is none."""
        return 1 << (self.bits - 1)

    def with_group(self, group: int) -> Self:
        """The same scheme with another finest group size."""
        return replace(self, levels=(replace(self.levels[0], group=group), *self.levels[1:]))

    def divides(self, columns: int) -> bool:
        """Whether every group of every level is full in a row of ``columns`` values."""
        return all(lv.group == WHOLE_ROW or columns % lv.group == 0 for lv in self.levels)

    def bits_per_weight(self, rows: int, columns: int) -> float:
        """Exact bits per weight of the codes, scales and offsets of a [rows, columns] tensor."""
        per_row = columns * self.bits
        for level in self.levels:
            offset_bits = {"none": 0, "zero": self.bits, "minimum": level.bits}[self.offset]
            per_row += level.num_groups(columns) * (level.bits + offset_bits)
        return per_row * rows / (rows * columns)

    def __str__(self) -> str:
        level = self.levels[0]
        parts = [f"w{self.bits}a{self.act.bits if self.act else 16}"]
        if level.group != WHOLE_ROW:
            parts.append(f"g{level.group}")
        elif self.act is None:
            parts.append("grow")  # w8a8 means whole rows; weight-only schemes say so
        if self.offset != "none":
            parts.append("asym" if self.offset == "zero" else "min")
        if level.dtype != "f16":
            parts.append(level.dtype)
        if self.act and not self.act.dynamic:
            parts.append("static")
        return "-".join(parts)

    @classmethod
    def parse(cls, text: str, *, default_group: int = 128) -> Self:
        """Read a scheme from its printed form or a GGUF type name.

        Args:
            text: such as ``w4a16-g64-asym``; ``w8a8`` means whole-row scales and per-token
                activations.
            default_group: group size when the text names none (weight-only schemes).

        Raises:
            UsageError: the text is not a scheme.
        """
        lowered = text.strip().lower()
        match = _PATTERN.fullmatch(_ALIASES.get(lowered, lowered))
        if match is None:
            raise UsageError(
                f"scheme {text!r} is not understood",
                hint="write for example w4a16-g64, w4a16-g128-asym, w8a8 or q8_0",
            )
        act_bits, bits = int(match["act"]), int(match["bits"])
        if bits not in _BITS:
            raise UsageError(f"scheme {text!r} asks for {bits} bits", hint=f"choose one of {_BITS}")
        if act_bits not in (8, 16):
            raise UsageError(
                f"scheme {text!r} asks for {act_bits}-bit activations", hint="use a8 or a16"
            )
        act = None if act_bits == 16 else ActScheme(act_bits, dynamic=not match["static"])
        if match["group"] is None:
            group = WHOLE_ROW if act else default_group
        else:
            group = WHOLE_ROW if match["group"] == "row" else int(match["group"])
        offset: Offset = "none"
        if match["offset"]:
            offset = "zero" if match["offset"] == "asym" else "minimum"
        level = ScaleLevel(group, match["dtype"] or "f16")
        return cls(bits, offset=offset, levels=(level,), act=act)


def has_group(text: str) -> bool:
    """Whether a scheme text names its group size (or implies it), so that no default is needed."""
    lowered = text.strip().lower()
    match = _PATTERN.fullmatch(_ALIASES.get(lowered, lowered))
    return match is not None and (match["group"] is not None or match["act"] != "16")
