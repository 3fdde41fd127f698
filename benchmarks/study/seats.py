"""Who was where when: when a server with few handlers heard each request, and the slots of a batch over time. Pure."""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from benchmarks.bench.record import Record


def heard(records: Sequence[Record], handlers: int) -> list[float]:
    """When each was, in the order of the records: the first to come is the first to get a handler. Where clocks begin
    behind that, as the study's does, latencies begin then."""
    free = [0.0] * handlers
    heapify(free)
    found = dict.fromkeys(range(len(records)), 0.0)
    for place in sorted(found, key=lambda place: records[place].sent):
        found[place] = max(free[0], records[place].sent)
        heapreplace(free, records[place].ended)
    return list(found.values())


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
