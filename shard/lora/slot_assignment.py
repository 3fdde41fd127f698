"""Assignment of adapters to slots.

Slots are grouped by LoRA rank rounded up to a power of two, so that one batched matmul serves several adapters.
"""

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

SLOTS_PER_BUCKET = 16  # adapter slots per bucket
# smallest and largest padded rank; the largest is also the highest rank supported
MIN_PADDED_RANK, MAX_PADDED_RANK = 8, 1024


class RankBucket(NamedTuple):
    """Group of adapters of one padded LoRA rank, whose matrices are stacked."""

    padded_rank: int  # padded rank of its adapters
    bucket_number: int


class AdapterSlot(NamedTuple):
    """Place of an adapter's matrices in its bucket, and its row in tables of all loaded adapters."""

    bucket: RankBucket
    index_in_bucket: int
    table_row: int  # index in a table of all loaded adapters, across buckets


def pad_rank(rank: int) -> int:
    """Return the padded rank, which depends on the adapter's own rank alone: docs/exactness.md, "Tiles of one size"."""
    return max(MIN_PADDED_RANK, 1 << (rank - 1).bit_length())


class AdapterSlots:
    """Assignment of loaded adapters to slots."""

    def __init__(self) -> None:
        self._slot_of_adapter: dict[int, AdapterSlot] = {}

    def assign(self, adapter: int, rank: int) -> AdapterSlot:
        """Assign the first free slot and row to the adapter."""
        slots = {(place.bucket, place.index_in_bucket) for place in self._slot_of_adapter.values()}
        rows = {place.table_row for place in self._slot_of_adapter.values()}
        slot = next(slot for slot in iter_bucket_slots(pad_rank(rank)) if slot not in slots)
        place = self._slot_of_adapter[adapter] = AdapterSlot(*slot, next(row for row in count() if row not in rows))
        return place

    def release(self, adapter: int) -> None:
        self._slot_of_adapter.pop(adapter, None)

    def find(self, adapter: int) -> AdapterSlot | None:
        """Return the adapter's slot; None if the adapter has no LoRA matrices of a linear."""
        return self._slot_of_adapter.get(adapter)


def iter_bucket_slots(padded_rank: int) -> Iterator[tuple[RankBucket, int]]:
    for number in count():
        for slot in range(SLOTS_PER_BUCKET):
            yield RankBucket(padded_rank, number), slot
