"""Where adapters hang: those of about the same rank side by side, so that one product may serve several.

Knows nothing of tensors, nor of what an adapter is.
"""

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

WIDTH = 16  # adapters on a shelf
LEAST_SIZE, MOST_SIZE = 8, 1024  # no adapter may have a higher rank


class Shelf(NamedTuple):
    size: int  # the rank that there is room for
    number: int


class Place(NamedTuple):
    shelf: Shelf
    slot: int
    row: int  # in a table of all that hang, on whichever shelf


def size_for(rank: int) -> int:
    """An adapter's own rank alone decides with what it is filled up, and so its bits."""
    return max(LEAST_SIZE, 1 << (rank - 1).bit_length())


class Racks:
    def __init__(self) -> None:
        self._places: dict[int, Place] = {}

    def take(self, adapter: int, rank: int) -> Place:
        """The first that is free."""
        slots = {(place.shelf, place.slot) for place in self._places.values()}
        rows = {place.row for place in self._places.values()}
        slot = next(slot for slot in slots_of(size_for(rank)) if slot not in slots)
        place = self._places[adapter] = Place(*slot, next(row for row in count() if row not in rows))
        return place

    def free(self, adapter: int) -> None:
        self._places.pop(adapter, None)

    def find(self, adapter: int) -> Place | None:
        """None if it changes no product."""
        return self._places.get(adapter)


def slots_of(size: int) -> Iterator[tuple[Shelf, int]]:
    for number in count():
        for slot in range(WIDTH):
            yield Shelf(size, number), slot
