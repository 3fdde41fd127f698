"""Overlaps of one request's phases with those of other requests: what they waited for or computed meanwhile."""

from collections.abc import Iterable, Sequence

from router.scheduler.sequence import RequestPhase, RequestTimeline

Interval = tuple[float, float]
Overlaps = dict[RequestPhase, dict[RequestPhase, float]]

# Phases of others that explain a phase of a request. The first in the queue is in the phase that holds up the queue.
PHASES_OF_OTHERS: dict[RequestPhase, tuple[RequestPhase, ...]] = {
    RequestPhase.QUEUE: (RequestPhase.BATCH_FULL, RequestPhase.NO_FREE_BLOCKS, RequestPhase.PREFILL_BUDGET,
                         RequestPhase.STATIC_GROUP, RequestPhase.FAULT_ISOLATION),
    RequestPhase.PREFILL: (RequestPhase.PREFILL,),
    RequestPhase.DECODE: (RequestPhase.PREFILL,),
}
EXPLAINING_PHASES = frozenset[RequestPhase]().union(*PHASES_OF_OTHERS.values())


def measure_overlaps(timeline: RequestTimeline, others: Iterable[RequestTimeline], now: float) -> Overlaps:
    """Return, for each phase of the request, the seconds that at least one other request spent in each phase that
    explains it. Phases without overlap are left out."""
    own_intervals: dict[RequestPhase, list[Interval]] = {}
    for phase, start, end in timeline.intervals(now):
        own_intervals.setdefault(phase, []).append((start, end))
    first, last = timeline.submitted_at, now if timeline.ended_at is None else timeline.ended_at
    others_intervals: dict[RequestPhase, list[Interval]] = {}
    for other in others:
        if other.submitted_at < last and (other.ended_at is None or other.ended_at > first):
            for phase, start, end in other.intervals(now):
                if phase in EXPLAINING_PHASES and start < last and end > first:
                    others_intervals.setdefault(phase, []).append((start, end))
    unions = {phase: merge_intervals(intervals) for phase, intervals in others_intervals.items()}
    overlaps: Overlaps = {}
    for phase, phases_of_others in PHASES_OF_OTHERS.items():
        for other_phase in phases_of_others:
            seconds = sum_overlap(own_intervals.get(phase, ()), unions.get(other_phase, ()))
            if seconds > 0.0:
                overlaps.setdefault(phase, {})[other_phase] = seconds
    return overlaps


def sum_prefill_overlap_seconds(timeline: RequestTimeline, other: RequestTimeline, now: float) -> float:
    """Return the seconds of the request's life in which the prompt of another request was computed."""
    lifetime = (timeline.submitted_at, now if timeline.ended_at is None else timeline.ended_at)
    return sum_overlap([lifetime], [(start, end) for phase, start, end in other.intervals(now)
                                    if phase is RequestPhase.PREFILL])


def measure_mean_other_decodes(timeline: RequestTimeline, others: Iterable[RequestTimeline], now: float) -> float:
    """Return how many others were in a decode, on average, while this one was; 0 if it never was."""
    own = list_decode_intervals(timeline, now)
    if not (seconds := sum(end - start for start, end in own)):
        return 0.0
    first, last = own[0][0], own[-1][1]
    return sum(sum_overlap(own, list_decode_intervals(other, now)) for other in others
               if other.submitted_at < last and (other.ended_at is None or other.ended_at > first)) / seconds


def list_decode_intervals(timeline: RequestTimeline, now: float) -> list[Interval]:
    return [(start, end) for phase, start, end in timeline.intervals(now) if phase is RequestPhase.DECODE]


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
