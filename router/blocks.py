"""The cache blocks: free, held, or kept for whoever asks for the same tokens again. Knows neither sequences nor tokens.

A block is held by any number of sequences; each keeps the list of its own and gives it back here. One that is full may
be published under a name (hashing.py) and then be held by others too, since nobody writes to it any more. When nobody
holds it, it is kept as long as there are others to take, and the least recently used goes first.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence


class Blocks:
    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size
        self._free = list(range(count - 1, -1, -1))
        self._holders = [0] * count
        self._names: list[bytes | None] = [None] * count  # of published blocks
        self._published: dict[bytes, int] = {}
        # Published and held by nobody, least recently used first. A dict would look for its first entry among the
        # places of all that were taken from it.
        self._kept = OrderedDict[int, None]()
        self._reserved: dict[bytes, int] = {}  # names that are being computed, and the block that will have them

    @property
    def num_free(self) -> int:
        """Blocks that may be taken."""
        return len(self._free) + len(self._kept)

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def places(self, tokens: int) -> int:
        """Blocks that so many tokens fill."""
        return -(-tokens // self.size)

    # -- holding

    def take(self, count: int) -> list[int]:
        """Blocks to write to."""
        assert 0 <= count <= self.num_free, f"{count} blocks wanted, {self.num_free} free"
        if count > len(self._free):
            self._drop(count - len(self._free))
        keep = len(self._free) - count
        taken = self._free[keep:]
        del self._free[keep:]
        for block in taken:
            self._holders[block] = 1
        return taken[::-1]

    def hold(self, blocks: Iterable[int]) -> None:
        """Published blocks that were found, to read from."""
        for block in blocks:
            self._holders[block] += 1
            self._kept.pop(block, None)

    def give_back(self, blocks: Sequence[int]) -> None:
        """Those of one sequence, in its order: what stands behind is of no use without what stands before, so it is
        kept for a shorter time."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            assert self._holders[block] >= 0, "a block was given back twice"
            if not self._holders[block]:
                if self._names[block] is not None:
                    self._kept[block] = None
                else:
                    self._free.append(block)

    def num_freed(self, leaving: Iterable[Sequence[int]]) -> int:
        """How many would be free if all these holders gave theirs back."""
        given = Counter(block for blocks in leaving for block in blocks)
        return sum(self._holders[block] == times for block, times in given.items())

    def num_kept_of(self, blocks: Iterable[int]) -> int:
        """How many of these nobody holds, so that to hold them leaves less to take."""
        return sum(not self._holders[block] for block in blocks)

    def _drop(self, count: int) -> None:
        for _ in range(count):
            block, _ = self._kept.popitem(last=False)
            name, self._names[block] = self._names[block], None
            assert name is not None
            del self._published[name]
            self._free.append(block)

    # -- sharing

    def knows(self, name: bytes) -> bool:
        return name in self._published

    def find(self, names: Iterable[bytes]) -> list[int]:
        """The published blocks of these names, up to the first that is missing."""
        found = []
        for name in names:
            block = self._published.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def publish(self, blocks: Iterable[int], names: Iterable[bytes]) -> None:
        """They are full, and whoever looks for their names may hold them. The first of a name wins."""
        for block, name in zip(blocks, names, strict=True):
            if self._reserved.get(name) == block:
                del self._reserved[name]
            if self._published.setdefault(name, block) == block:
                self._names[block] = name

    def reserve(self, block: int, name: bytes) -> None:
        """It will be published under this name. The first of a name wins."""
        if name not in self._published:
            self._reserved.setdefault(name, block)

    def release(self, block: int, name: bytes) -> None:
        """It will not."""
        if self._reserved.get(name) == block:
            del self._reserved[name]

    def is_reserved(self, name: bytes) -> bool:
        return name in self._reserved
