"""Pool of KV cache blocks: free, held, or kept for requests with the same tokens.

A block is held by any number of sequences; each has the list of its blocks and returns them here. A full block may be
cached under its hash (see `hash_blocks`) and then be shared, since no sequence writes to it any more. Once
no sequence holds it, it is kept while free blocks suffice; the least recently used is evicted first.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence

FREE_BLOCK, CACHED_BLOCK, SHARED_BLOCK = 0, -1, -2  # in place of the holder of a block


class BlockPool:
    """Pool of blocks, numbered from 0."""

    __slots__ = ("_block_by_hash", "_evictable_blocks", "_free_blocks", "_hash_by_block", "_ref_counts",
                 "_reserved_hashes", "block_size", "contents_version", "num_blocks")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free_blocks = list(range(num_blocks - 1, -1, -1))
        self._ref_counts = [0] * num_blocks
        self._hash_by_block: list[bytes | None] = [None] * num_blocks  # of cached blocks
        self._block_by_hash: dict[bytes, int] = {}
        self.contents_version = 0  # changes whenever a hash is cached or evicted
        # Cached and not held, least recently used first. Not a dict: finding its first entry takes time
        # proportional to the entries deleted before it.
        self._evictable_blocks = OrderedDict[int, None]()
        self._reserved_hashes: dict[bytes, int] = {}  # of blocks that are being computed: the block that will have each

    @property
    def num_free(self) -> int:
        """Number of blocks that can be allocated, kept ones included."""
        return len(self._free_blocks) + len(self._evictable_blocks)

    @property
    def num_evictable(self) -> int:
        return len(self._evictable_blocks)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return the number of blocks that hold this many tokens."""
        return -(-num_tokens // self.block_size)

    # -- holding

    def allocate(self, num_blocks: int) -> list[int]:
        """Allocate blocks to write to; kept ones are evicted if free ones do not suffice."""
        if not 0 <= num_blocks <= self.num_free:
            raise RuntimeError(f"{num_blocks} blocks wanted, {self.num_free} free")
        num_to_evict = num_blocks - len(self._free_blocks)
        if num_to_evict > 0:
            self.contents_version += 1
            for _ in range(num_to_evict):
                block, _ = self._evictable_blocks.popitem(last=False)
                block_hash, self._hash_by_block[block] = self._hash_by_block[block], None
                assert block_hash is not None
                del self._block_by_hash[block_hash]
                self._free_blocks.append(block)
        num_left = len(self._free_blocks) - num_blocks
        allocated = self._free_blocks[num_left:]
        del self._free_blocks[num_left:]
        for block in allocated:
            self._ref_counts[block] = 1
        return allocated[::-1]

    def touch(self, blocks: Iterable[int]) -> None:
        """Hold cached blocks to read from."""
        for block in blocks:
            self._ref_counts[block] += 1
            self._evictable_blocks.pop(block, None)

    def free(self, blocks: Sequence[int]) -> None:
        """Free the blocks of one sequence, given in its order.

        Later blocks are of no use without the ones before, so they are evicted first.
        """
        for block in reversed(blocks):
            if not self._ref_counts[block]:
                raise RuntimeError("a block was given back twice")
            self._ref_counts[block] -= 1
            if not self._ref_counts[block]:
                if self._hash_by_block[block] is not None:
                    self._evictable_blocks[block] = None
                else:
                    self._free_blocks.append(block)

    def count_freed_by(self, block_tables: Iterable[Sequence[int]]) -> int:
        """Return how many blocks would become free if all these holders freed theirs."""
        num_releases = Counter(block for blocks in block_tables for block in blocks)
        return sum(self._ref_counts[block] == times for block, times in num_releases.items())

    def count_unreferenced(self, blocks: Iterable[int]) -> int:
        """Return how many of these blocks are not held: holding them reduces `num_free`."""
        return sum(not self._ref_counts[block] for block in blocks)

    def list_holders(self, block_tables: Mapping[int, Sequence[int]]) -> list[int]:
        """Return for each block the number of the holder that has it in its table, or SHARED_BLOCK if several hold it.
        CACHED_BLOCK is one that is kept and not held."""
        holders = [FREE_BLOCK] * self.num_blocks
        for block in self._evictable_blocks:
            holders[block] = CACHED_BLOCK
        for holder, blocks in block_tables.items():
            for block in blocks:
                holders[block] = holder if self._ref_counts[block] == 1 else SHARED_BLOCK
        return holders

    # -- sharing

    def is_cached(self, block_hash: bytes) -> bool:
        return block_hash in self._block_by_hash

    def find_cached_prefix(self, block_hashes: Iterable[bytes]) -> list[int]:
        """Return the cached blocks with these hashes, up to the first hash that is missing."""
        found = []
        for block_hash in block_hashes:
            block = self._block_by_hash.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def cache_full_blocks(self, blocks: Iterable[int], block_hashes: Iterable[bytes]) -> None:
        """Cache full blocks, so that `find_cached_prefix` returns them. A cached hash keeps its block."""
        self.contents_version += 1
        for block, block_hash in zip(blocks, block_hashes, strict=True):
            if self._reserved_hashes.get(block_hash) == block:
                del self._reserved_hashes[block_hash]
            if self._block_by_hash.setdefault(block_hash, block) == block:
                self._hash_by_block[block] = block_hash

    def reserve_hash(self, block: int, block_hash: bytes) -> None:
        """Reserve a hash for a block that is being computed, unless the hash is cached or reserved already."""
        if block_hash not in self._block_by_hash:
            self._reserved_hashes.setdefault(block_hash, block)

    def cancel_hash_reservation(self, block: int, block_hash: bytes) -> None:
        """Remove the reservation of this block."""
        if self._reserved_hashes.get(block_hash) == block:
            del self._reserved_hashes[block_hash]

    def is_hash_reserved(self, block_hash: bytes) -> bool:
        return block_hash in self._reserved_hashes
