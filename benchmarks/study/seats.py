"""Slots of a batch over time: which request ran in which slot."""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from benchmarks.bench.load.record import Record


class Seat(NamedTuple):
    slot: int
    begin: float
    end: float


def seats(stays: Iterable[tuple[float, float]]) -> list[Seat]:
    """Assign each request, in order of begin, the lowest free slot."""
    taken: list[tuple[float, int]] = []
    free: list[int] = []
    found = []
    for begin, end in sorted(stays):
        while taken and taken[0][0] <= begin:
            heappush(free, heappop(taken)[1])
        slot = heappop(free) if free else len(taken)
        heappush(taken, (end, slot))
        found.append(Seat(slot, begin, end))
    return found


def stays(records: Iterable[Record]) -> list[tuple[float, float]]:
    """Return the times of first and last token of each streamed request."""
    return [(record.times[0], record.times[-1]) for record in records if record.times]
