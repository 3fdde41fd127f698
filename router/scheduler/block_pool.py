"""Pool of KV cache blocks: free, held, or kept for requests with the same tokens.

A block is held by any number of sequences; each has the list of its blocks and returns them here. A full block may be
published under a name (its hash, see block_hash.py) and then be shared, since no sequence writes to it any more. Once
no sequence holds it, it is kept while free blocks suffice; the least recently used is evicted first.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence


class Blocks:
    """Pool of blocks, numbered from 0."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size
        self._free = list(range(count - 1, -1, -1))
        self._holders = [0] * count
        self._names: list[bytes | None] = [None] * count  # of published blocks
        self._published: dict[bytes, int] = {}
        # Published and not held, least recently used first. Not a dict: finding its first entry takes time
        # proportional to the entries deleted before it.
        self._kept = OrderedDict[int, None]()
        self._reserved: dict[bytes, int] = {}  # names that are being computed, and the block that will have each

    @property
    def num_free(self) -> int:
        """Number of blocks that can be allocated, kept ones included."""
        return len(self._free) + len(self._kept)

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def places(self, tokens: int) -> int:
        """Return the number of blocks that hold this many tokens."""
        return -(-tokens // self.size)

    # -- holding

    def take(self, count: int) -> list[int]:
        """Allocate blocks to write to; kept ones are evicted if free ones do not suffice."""
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
        """Hold published blocks to read from."""
        for block in blocks:
            self._holders[block] += 1
            self._kept.pop(block, None)

    def give_back(self, blocks: Sequence[int]) -> None:
        """Free the blocks of one sequence, given in its order.

        Later blocks are of no use without the ones before, so they are evicted first.
        """
        for block in reversed(blocks):
            self._holders[block] -= 1
            assert self._holders[block] >= 0, "a block was given back twice"
            if not self._holders[block]:
                if self._names[block] is not None:
                    self._kept[block] = None
                else:
                    self._free.append(block)

    def num_freed(self, leaving: Iterable[Sequence[int]]) -> int:
        """Return how many blocks would become free if all these holders freed theirs."""
        given = Counter(block for blocks in leaving for block in blocks)
        return sum(self._holders[block] == times for block, times in given.items())

    def num_kept_of(self, blocks: Iterable[int]) -> int:
        """Return how many of these blocks are not held: holding them reduces `num_free`."""
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
        """Return the published blocks of these names, up to the first name that is missing."""
        found = []
        for name in names:
            block = self._published.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def publish(self, blocks: Iterable[int], names: Iterable[bytes]) -> None:
        """Publish full blocks, so that `find` returns them. A name that is published already keeps its block."""
        for block, name in zip(blocks, names, strict=True):
            if self._reserved.get(name) == block:
                del self._reserved[name]
            if self._published.setdefault(name, block) == block:
                self._names[block] = name

    def reserve(self, block: int, name: bytes) -> None:
        """Reserve a name for a block that is being computed, unless the name is published or reserved already."""
        if name not in self._published:
            self._reserved.setdefault(name, block)

    def release(self, block: int, name: bytes) -> None:
        """Remove the reservation of this block."""
        if self._reserved.get(name) == block:
            del self._reserved[name]

    def is_reserved(self, name: bytes) -> bool:
        return name in self._reserved
