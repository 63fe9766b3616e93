"""Random numbers by name instead of by state: a function of (seed, position, purpose).

A draw does not depend on what was drawn before, so neighbors in a batch, preemption and the number
of tokens that a step accepts cannot shift it. The function is Philox-4x32 with ten rounds (Salmon
et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011), which GPU kernels can compute too.
"""

from enum import IntEnum

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


class Purpose(IntEnum):
    """What a number is for; draws for different purposes are independent."""

    SAMPLE = 0


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox-4x32-10: four 32-bit numbers from a 128-bit counter and a 64-bit key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int, purpose: Purpose) -> float:
    """A number in [0, 1) with 53 random bits.

    Args:
        seed: any integer; the lowest 64 bits count.
        position: index in its sequence of the token that it is for.
        purpose: what it is for.
    """
    low, high, _, _ = philox(
        (position & _MASK, position >> 32, int(purpose), 0), (seed & _MASK, (seed >> 32) & _MASK)
    )
    return ((high << 32 | low) >> 11) * 2.0**-53
