"""Block tables that stay on the device from step to step, a row of them for each that decodes: only what is new goes
there.

A sequence's list of blocks is one list for as long as the sequence lives, and only grows. In which row it stands may be
another with every step. Knows nothing of what is read through the tables.
"""

from collections.abc import Sequence

import torch

from shard.device import Standing


class Tables:
    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        """With so many blocks at most in each."""
        self.width = width
        self.there = torch.zeros(rows * width, dtype=torch.int32, device=device)  # one row behind the other
        self._known: list[tuple[list[int], int]] = [([], 0)] * rows  # whose blocks stand there, and how many
        self._standing = Standing([rows * width] * 2, torch.int32, device)

    def write(self, tables: Sequence[tuple[list[int], int]]) -> int:
        """For the first rows: a sequence's blocks, and how many of them are looked at. Returns how many went there."""
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
