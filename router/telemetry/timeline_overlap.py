"""What other requests waited for or computed while one request waited or ran, from the timelines of all."""

from collections.abc import Iterable, Sequence

from router.scheduler.sequence import RequestPhase, RequestTimeline

Interval = tuple[float, float]

# Phases of others that explain a phase of a request. The first in the queue is in the phase that holds up the queue.
PHASES_OF_OTHERS: dict[RequestPhase, tuple[RequestPhase, ...]] = {
    RequestPhase.QUEUE: (RequestPhase.BATCH_FULL, RequestPhase.NO_FREE_BLOCKS, RequestPhase.PREFILL_BUDGET),
    RequestPhase.PREFILL: (RequestPhase.PREFILL,),
    RequestPhase.DECODE: (RequestPhase.PREFILL,),
}


def measure_overlaps(timeline: RequestTimeline, all_timelines: Iterable[RequestTimeline],
                     now: float) -> dict[RequestPhase, dict[RequestPhase, float]]:
    """Return by phase of the request the seconds of it in which at least one other request was in each of the phases
    that explain it. Without any such second a phase is left out."""
    own_intervals = intervals_by_phase([timeline], now)
    first, last = timeline.submitted_at, now if timeline.ended_at is None else timeline.ended_at
    others = [other for other in all_timelines if other is not timeline and other.submitted_at < last
              and (other.ended_at is None or other.ended_at > first)]
    others_intervals = {phase: merge_intervals(intervals) for phase, intervals
                        in intervals_by_phase(others, now).items()}
    overlaps: dict[RequestPhase, dict[RequestPhase, float]] = {}
    for phase, phases_of_others in PHASES_OF_OTHERS.items():
        for other_phase in phases_of_others:
            seconds = sum_overlap(own_intervals.get(phase, ()), others_intervals.get(other_phase, ()))
            if seconds > 0.0:
                overlaps.setdefault(phase, {})[other_phase] = seconds
    return overlaps


def intervals_by_phase(timelines: Iterable[RequestTimeline], now: float) -> dict[RequestPhase, list[Interval]]:
    intervals: dict[RequestPhase, list[Interval]] = {}
    for timeline in timelines:
        for phase, start, end in timeline.intervals(now):
            intervals.setdefault(phase, []).append((start, end))
    return intervals


def merge_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union as sorted intervals that do not touch."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def sum_overlap(first: Sequence[Interval], second: Sequence[Interval]) -> float:
    """Return the length of the intersection of two unions of sorted intervals that do not overlap."""
    total, i, j = 0.0, 0, 0
    while i < len(first) and j < len(second):
        total += max(0.0, min(first[i][1], second[j][1]) - max(first[i][0], second[j][0]))
        if first[i][1] <= second[j][1]:
            i += 1
        else:
            j += 1
    return total
