"""Who was where when: the slots of a batch over time. Pure."""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from benchmarks.bench.record import Record


class Seat(NamedTuple):
    slot: int
    begin: float
    end: float


def seats(stays: Iterable[tuple[float, float]]) -> list[Seat]:
    """Whoever comes takes the lowest slot that is free."""
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
    """From the first token to the last."""
    return [(record.times[0], record.times[-1]) for record in records if record.times]
