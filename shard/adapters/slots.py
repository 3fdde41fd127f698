"""Assignment of adapters to slots.

Slots are grouped by LoRA rank rounded up to a power of two, so that one batched matmul serves several adapters.
"""

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

WIDTH = 16  # adapter slots per shelf
LEAST_SIZE, MOST_SIZE = 8, 1024  # smallest and largest padded rank; the largest is also the highest rank supported


class Shelf(NamedTuple):
    size: int  # padded rank of its adapters
    number: int


class Place(NamedTuple):
    shelf: Shelf
    slot: int
    row: int  # index in a table of all loaded adapters, across shelves


def size_for(rank: int) -> int:
    """Return the padded rank. It depends only on the adapter's own rank, so other adapters do not change its bits."""
    return max(LEAST_SIZE, 1 << (rank - 1).bit_length())


class Racks:
    def __init__(self) -> None:
        self._places: dict[int, Place] = {}

    def take(self, adapter: int, rank: int) -> Place:
        """Assign the first free slot and row to the adapter."""
        slots = {(place.shelf, place.slot) for place in self._places.values()}
        rows = {place.row for place in self._places.values()}
        slot = next(slot for slot in slots_of(size_for(rank)) if slot not in slots)
        place = self._places[adapter] = Place(*slot, next(row for row in count() if row not in rows))
        return place

    def free(self, adapter: int) -> None:
        self._places.pop(adapter, None)

    def find(self, adapter: int) -> Place | None:
        """Return the adapter's slot; None if the adapter has no LoRA matrices of a linear."""
        return self._places.get(adapter)


def slots_of(size: int) -> Iterator[tuple[Shelf, int]]:
    for number in count():
        for slot in range(WIDTH):
            yield Shelf(size, number), slot
