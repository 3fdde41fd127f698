"""Accounting of cache blocks: how many sequences hold each block, and which blocks are full.

A block is written by one sequence at a time: its holder until it is full. A full block may be shared by any number of
sequences as part of a cached prefix, and is written again only when no sequence holds it.
"""

from collections import Counter
from collections.abc import Iterable

from shard.errors import Malformed, Refused


class Blocks:
    def __init__(self, size: int, count: int) -> None:
        self.size = size
        self.count = count
        self.num_holders = [0] * count
        self.full = bytearray(count)  # every slot was computed since the block was last taken for writing

    def take(self, blocks: Iterable[int]) -> None:
        """Hold blocks that will be written."""
        for block in blocks:
            self.num_holders[block] = 1
            self.full[block] = False

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks that are full."""
        for block in blocks:
            self.num_holders[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.num_holders[block] -= 1

    def fill(self, blocks: Iterable[int]) -> None:
        """Mark blocks as full: every slot is computed."""
        for block in blocks:
            self.full[block] = True

    def unfill(self, blocks: Iterable[int]) -> None:
        """Undo `fill`."""
        for block in blocks:
            self.full[block] = False


class Claims:
    """Changes that one message makes to the blocks, checked as the message is read, before anything is applied."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._released: Counter[int] = Counter()
        self._taken: set[int] = set()
        self._shared: set[int] = set()

    def release(self, blocks: Iterable[int]) -> None:
        self._released.update(blocks)

    def take(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block in self._taken or block in self._shared:
                raise Malformed(f"block {block} is named twice")
            if self._blocks.num_holders[block] > self._released[block]:
                raise Refused(f"block {block} is held by another sequence")
            self._taken.add(block)

    def share(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block in self._taken:
                raise Malformed(f"block {block} is named as cached and as free")
            if not self._blocks.full[block]:
                raise Refused(f"block {block} is named as cached and was never filled")
            self._shared.add(block)
