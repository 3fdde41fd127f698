"""Accounting of cache blocks: how many sequences hold each block, and which blocks are full.

A block is written by one sequence at a time: its holder until it is full. A full block may be shared by any number of
sequences as part of a cached prefix, and is written again only when no sequence holds it.
"""

from collections.abc import Iterable

MIN_BLOCK_SIZE = 16  # slots; every block size is a multiple of it: the attention gathers so many slots together


class BlockUsage:
    """How many sequences hold each cache block, and which blocks are full."""

    def __init__(self, block_size: int, num_blocks: int) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.num_holders = [0] * num_blocks
        self.is_full = bytearray(num_blocks)  # every slot was computed since the block was last taken for writing

    def acquire(self, blocks: Iterable[int]) -> None:
        """Hold blocks that will be written."""
        for block in blocks:
            self.num_holders[block] = 1
            self.is_full[block] = False

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks that are full."""
        for block in blocks:
            self.num_holders[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.num_holders[block] -= 1

    def mark_full(self, blocks: Iterable[int], *, is_full: bool = True) -> None:
        """Mark blocks as full: every slot is computed. With `is_full` False, undo that."""
        for block in blocks:
            self.is_full[block] = is_full
