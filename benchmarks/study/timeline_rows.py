"""Slots of a batch over time: which request ran in which slot."""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from benchmarks.bench.load.request_records import RequestRecord


class TimelineBar(NamedTuple):
    """Bar of a timeline: its row, and when it starts and ends."""

    slot: int
    start: float
    end: float


def assign_timeline_rows(intervals: Iterable[tuple[float, float]]) -> list[TimelineBar]:
    """Assign each request, in order of begin, the lowest free slot."""
    busy_slots: list[tuple[float, int]] = []
    free_slots: list[int] = []
    slot_stays = []
    for start, end in sorted(intervals):
        while busy_slots and busy_slots[0][0] <= start:
            heappush(free_slots, heappop(busy_slots)[1])
        slot = heappop(free_slots) if free_slots else len(busy_slots)
        heappush(busy_slots, (end, slot))
        slot_stays.append(TimelineBar(slot, start, end))
    return slot_stays


def list_streaming_intervals(records: Iterable[RequestRecord]) -> list[tuple[float, float]]:
    """Return the times of first and last token of each streamed request."""
    return [(record.times[0], record.times[-1]) for record in records if record.times]
