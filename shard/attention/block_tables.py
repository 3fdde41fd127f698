"""Block tables that stay on the device between steps, one row per decode; only new blocks are copied.

This relies on a sequence's block list being the same list object for the sequence's whole life, and only growing. Its
row may change with every step.
"""

from collections.abc import Sequence

import torch

from shard.host.device import Standing


class Tables:
    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        """Allocate `rows` rows of at most `width` blocks."""
        self.width = width
        self.there = torch.zeros(rows * width, dtype=torch.int32, device=device)  # all rows, one after the other
        self._known: list[tuple[list[int], int]] = [([], 0)] * rows  # by row: the block list copied, and how many of it
        self._standing = Standing([rows * width] * 2, torch.int32, device)

    def write(self, tables: Sequence[tuple[list[int], int]]) -> int:
        """Update the first rows. `tables`: each sequence's block list and how many of its blocks are used.

        Return the number of blocks copied.
        """
        places: list[int] = []
        blocks: list[int] = []
        for row, (table, count) in enumerate(tables):
            known, before = self._known[row]
            if known is not table:
                before = 0
            if count > before:
                places += range(row * self.width + before, row * self.width + count)
                blocks += table[before:count]
                self._known[row] = table, count
        if places:
            self._standing.send([places, blocks])
            there, values = (column[:len(places)] for column in self._standing.lists)
            self.there.index_copy_(0, there.long(), values)
        return len(places)
