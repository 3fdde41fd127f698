"""The cache blocks: which are free. Knows neither what stands in them nor who holds them.

Every block is free or held, by exactly one sequence; the holder keeps the list and gives it back here.
"""

from collections.abc import Iterable


class Blocks:
    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size
        self._free = list(range(count - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def places(self, tokens: int) -> int:
        """Blocks that so many tokens fill."""
        return -(-tokens // self.size)

    def take(self, count: int) -> list[int]:
        assert 0 <= count <= len(self._free), f"{count} blocks wanted, {len(self._free)} free"
        keep = len(self._free) - count
        taken = self._free[keep:]
        del self._free[keep:]
        return taken[::-1]

    def give_back(self, blocks: Iterable[int]) -> None:
        self._free.extend(blocks)
        assert len(self._free) <= self.count, "a block was given back twice"
