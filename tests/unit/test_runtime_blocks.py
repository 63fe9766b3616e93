"""BlockPool: counting, order of reuse, and a prefix cache that cannot be fooled."""

import random

import pytest

from quantkit.runtime.blocks import NULL_BLOCK, ROOT, BlockPool


def _fill(pool: BlockPool, tokens: list[int]) -> list[int]:
    """Compute a sequence: take blocks, offer the full ones to the prefix cache."""
    found = pool.match(tokens)
    chain = pool.share(found)
    table = found + pool.allocate(pool.blocks_for(len(tokens)) - len(found))
    size = pool.block_size
    for i in range(len(found), len(tokens) // size):
        chain = pool.register(table[i], chain, tokens[i * size : (i + 1) * size])
    return table


def test_blocks_are_counted_and_come_back() -> None:
    pool = BlockPool(4, 2)
    table = pool.allocate(3)
    assert NULL_BLOCK not in table
    assert len({*table}) == 3
    assert pool.num_free == 1
    pool.check([table])
    pool.release(table)
    pool.check([])
    assert pool.num_free == 4
    with pytest.raises(AssertionError, match="released once too often"):
        pool.release(table[:1])
    with pytest.raises(AssertionError, match="5 blocks wanted, 4 free"):
        pool.allocate(5)


def test_a_prefix_is_found_and_shared() -> None:
    pool = BlockPool(8, 2)
    first = _fill(pool, [1, 2, 3, 4, 5])
    second = _fill(pool, [1, 2, 3, 4, 9])
    assert second[:2] == first[:2]
    assert second[2] != first[2]
    pool.check([first, second])
    pool.release(first)
    pool.release(second)
    pool.check([])
    assert pool.match([1, 2, 3, 4, 5]) == first[:2]  # free blocks keep their content


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9])
def test_a_hit_never_covers_the_whole_sequence(length: int) -> None:
    pool = BlockPool(8, 4)
    tokens = list(range(length))
    pool.release(_fill(pool, tokens))
    assert len(pool.match(tokens)) * 4 < length


def test_the_same_tokens_after_another_prefix_are_not_a_hit() -> None:
    pool = BlockPool(8, 2)
    _fill(pool, [1, 2, 7, 8, 0])
    assert pool.match([3, 4, 7, 8, 0]) == []
    assert pool.match([7, 8, 0]) == []


def test_content_goes_oldest_first_and_from_the_end() -> None:
    pool = BlockPool(4, 2)
    pool.release(_fill(pool, [9, 9]))
    pool.release(_fill(pool, [1, 2, 3, 4, 5]))
    kept = []
    for _ in range(4):
        kept.append((len(pool.match([9, 9, 0])), len(pool.match([1, 2, 3, 4, 0]))))
        pool.allocate(1)
    assert kept == [(1, 2), (1, 2), (0, 2), (0, 1)]  # first the half block, then by age


def test_a_block_with_new_content_is_not_found_by_the_old() -> None:
    pool = BlockPool(2, 1)
    pool.release(_fill(pool, [1, 2]))
    pool.release(_fill(pool, [3, 4]))
    assert pool.match([1, 2, 0]) == []
    assert len(pool.match([3, 4, 0])) == 2
    pool.check([])


def test_twice_the_same_content_at_the_same_time() -> None:
    pool = BlockPool(6, 1)
    one, two = pool.allocate(2), pool.allocate(2)
    chain = [pool.register(table[0], ROOT, [5]) for table in (one, two)]
    assert chain[0] == chain[1]  # their continuations find each other
    chain = [pool.register(table[1], chain[0], [6]) for table in (one, two)]
    assert chain[0] == chain[1]
    assert pool.match([5, 6, 0]) == one
    pool.check([one, two])


def test_switched_off() -> None:
    pool = BlockPool(4, 1, prefix_cache=False)
    pool.release(_fill(pool, [1, 2]))
    assert pool.match([1, 2, 3]) == []


class _Colliding(int):
    """A token whose hash says nothing."""

    def __hash__(self) -> int:
        return 0


def test_equal_hashes_are_not_equal_tokens() -> None:
    pool = BlockPool(300, 2)
    rng = random.Random(0)
    prompts = [[_Colliding(rng.randrange(8)) for _ in range(9)] for _ in range(50)]
    held: list[tuple[list[int], list[int]]] = []
    for prompt in prompts:
        found = pool.match(prompt)
        longest = max((_common(prompt[:8], other[:8]) // 2 for other, _ in held), default=0)
        assert len(found) == longest
        held.append((prompt, _fill(pool, prompt)))
    pool.check([table for _, table in held])


def _common(one: list[int], two: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b), len(one))
