"""BlockPool: fixed-size cache blocks with reference counts, an O(1) free list and the prefix cache.

The prefix cache maps (what came before, the tokens of one full block) to the block that holds
their keys and values. What came before is a number that stands for exactly one chain of tokens, and
a dictionary compares the tokens themselves on a hit, so two prefixes can never be taken for each
other, whatever their hashes are.
"""

from collections.abc import Iterable, Sequence

NULL_BLOCK = 0
"""Block that padding writes to; never handed out."""

ROOT = 0
"""Content number of the empty prefix."""

_Key = tuple[int, tuple[int, ...]]


class _Block:
    """One block; ``prev`` and ``next`` link it while it is free."""

    __slots__ = ("content", "id", "key", "next", "prev", "refs")

    def __init__(self, block_id: int) -> None:
        self.id = block_id
        self.refs = 0
        self.key: _Key | None = None
        self.content = ROOT
        self.prev: _Block = self
        self.next: _Block = self


class BlockPool:
    """The blocks of one cache.

    Args:
        num_blocks: blocks to hand out, numbered from 1; block 0 comes on top, for padding.
        block_size: tokens in a block.
        prefix_cache: whether full blocks are found again by their tokens.
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_cache: bool = True) -> None:
        assert num_blocks > 0 and block_size > 0
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_free = 0
        self._prefix_cache = prefix_cache
        self._blocks = [_Block(i) for i in range(num_blocks + 1)]
        self._free = _Block(-1)  # ring head: next is handed out first, prev last
        self._cached: dict[_Key, _Block] = {}
        self._next_content = ROOT + 1
        for block in self._blocks[1:]:
            self._push(block, first=False)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` free blocks, those with content worth keeping last, oldest first."""
        assert count <= self.num_free, f"{count} blocks wanted, {self.num_free} free"
        return [self._take() for _ in range(count)]

    def release(self, table: Sequence[int]) -> None:
        """Give back one reference to each block of a table.

        The end of a table is handed out again before its start, so cached chains die from the end.
        """
        for block_id in reversed(table):
            block = self._blocks[block_id]
            assert block.refs > 0, f"block {block_id} is released once too often"
            block.refs -= 1
            if block.refs == 0:
                self._push(block, first=block.key is None)

    def match(self, tokens: Sequence[int]) -> list[int]:
        """Cached blocks that hold a prefix of ``tokens``; at least one token is left to compute."""
        found: list[int] = []
        parent = ROOT
        for end in range(self.block_size, len(tokens), self.block_size):
            block = self._cached.get((parent, tuple(tokens[end - self.block_size : end])))
            if block is None:
                break
            found.append(block.id)
            parent = block.content
        return found

    def num_free_without(self, block_ids: Iterable[int]) -> int:
        """Free blocks that would be left once these are referenced."""
        return self.num_free - sum(self._blocks[i].refs == 0 for i in block_ids)

    def share(self, block_ids: Sequence[int]) -> int:
        """Reference blocks found by ``match``; returns the content number of the last."""
        for block_id in block_ids:
            block = self._blocks[block_id]
            if block.refs == 0:
                self._unlink(block)
            block.refs += 1
        return self._blocks[block_ids[-1]].content if block_ids else ROOT

    def register(self, block_id: int, parent: int, tokens: Sequence[int]) -> int:
        """Offer a full block, whose tokens are settled and computed, to the prefix cache.

        Args:
            block_id: the block.
            parent: content number of the block before it, ``ROOT`` for the first.
            tokens: the ``block_size`` tokens that it holds.

        Returns:
            Content number of the chain that ends here.
        """
        if not self._prefix_cache:
            return ROOT
        assert len(tokens) == self.block_size
        key = (parent, tuple(tokens))
        known = self._cached.get(key)
        if known is not None:  # computed twice at the same time: the first one stays
            return known.content
        block = self._blocks[block_id]
        assert block.refs > 0 and block.key is None
        block.key, block.content = key, self._next_content
        self._next_content += 1
        self._cached[key] = block
        return block.content

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Assert the invariants, given the tables of all requests that hold blocks."""
        held = [0] * len(self._blocks)
        for table in tables:
            for block_id in table:
                held[block_id] += 1
        assert held[NULL_BLOCK] == 0, "the null block is in a table"
        assert held == [block.refs for block in self._blocks], "references differ from tables"
        free: set[int] = set()
        block = self._free.next
        while block is not self._free:
            assert block.next.prev is block and block.prev.next is block, "free list is broken"
            assert block.refs == 0 and block.id not in free, f"block {block.id} is not free"
            free.add(block.id)
            block = block.next
        assert len(free) == self.num_free, "free count is wrong"
        assert free == {b.id for b in self._blocks[1:] if b.refs == 0}, "free + used is not all"
        for key, cached in self._cached.items():
            assert cached.key == key and len(key[1]) == self.block_size, "prefix cache is wrong"

    def _take(self) -> int:
        block = self._free.next
        self._unlink(block)
        if block.key is not None:
            del self._cached[block.key]
            block.key, block.content = None, ROOT
        block.refs = 1
        return block.id

    def _push(self, block: _Block, *, first: bool) -> None:
        before = self._free if first else self._free.prev
        block.prev, block.next = before, before.next
        before.next.prev = block
        before.next = block
        self.num_free += 1

    def _unlink(self, block: _Block) -> None:
        block.prev.next, block.next.prev = block.next, block.prev
        block.prev = block.next = block
        self.num_free -= 1
