"""Where adapters hang: those of about the same rank side by side, so that one product serves several.

Every product of a model has, for each shelf, its matrices of all adapters that hang there in one tensor. Knows nothing
of tensors, nor of what an adapter is.
"""

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

WIDTH = 16  # adapters on a shelf
LEAST_SIZE, MOST_SIZE = 8, 1024  # no adapter may have a higher rank
KINDS = (MOST_SIZE // LEAST_SIZE).bit_length()  # of sizes


class Shelf(NamedTuple):
    size: int  # the rank that there is room for
    number: int


class Place(NamedTuple):
    shelf: Shelf
    slot: int

    @property
    def row(self) -> int:
        """In a table of the places of all sizes."""
        return KINDS * (WIDTH * self.shelf.number + self.slot) + (self.shelf.size // LEAST_SIZE).bit_length() - 1


def size_for(rank: int) -> int:
    """An adapter's own rank alone decides with what it is filled up, and so its bits."""
    return max(LEAST_SIZE, 1 << (rank - 1).bit_length())


class Racks:
    def __init__(self) -> None:
        self._places: dict[int, Place] = {}

    def take(self, adapter: int, rank: int) -> Place:
        """The first that is free."""
        taken = set(self._places.values())
        place = next(place for place in places(size_for(rank)) if place not in taken)
        self._places[adapter] = place
        return place

    def free(self, adapter: int) -> None:
        self._places.pop(adapter, None)

    def find(self, adapter: int) -> Place | None:
        """None if it changes no product."""
        return self._places.get(adapter)


def places(size: int) -> Iterator[Place]:
    for number in count():
        for slot in range(WIDTH):
            yield Place(Shelf(size, number), slot)
