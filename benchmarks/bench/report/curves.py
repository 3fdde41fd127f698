"""Points of a run's plots: distributions, fits and time series.

The number of points is limited, so that a long run makes no larger page than a short one.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from statistics import linear_regression
from typing import TypeVar

from benchmarks.bench.load.record import Record
from benchmarks.bench.report.result import Result

MOST_POINTS = 300  # of a line
MOST_DOTS = 1500
MOST_BINS = 100
WIDTHS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800, 3600)  # seconds of a bin

Value = TypeVar("Value")
Point = tuple[float, float]


def counted(result: Result) -> list[Record]:
    """Return the records that count for latencies: successful, and due within the window."""
    begin, end = result.window
    return [record for record in result.records if not record.error and begin <= record.due < end]


def shares(ordered: Sequence[float], least: float = 0.0) -> list[Point]:
    """Return the cumulative distribution in percent. Values below `least` are raised to it."""
    count = len(ordered)
    return [(max(ordered[place], least), 100 * (place + 1) / count) for place in thinned(range(count), MOST_POINTS)]


def thinned(values: Sequence[Value], most: int) -> list[Value]:
    """Return at most `most` of the values, at equal distances and with both ends."""
    if len(values) <= most:
        return list(values)
    return [values[place * (len(values) - 1) // (most - 1)] for place in range(most)]


def fitted(points: Sequence[Point]) -> list[Point]:
    """Return both ends of the least-squares line; empty if all x are equal."""
    places = [x for x, _ in points]
    if len(set(places)) < 2:
        return []
    slope, intercept = linear_regression(places, [y for _, y in points])
    return [(x, slope * x + intercept) for x in (min(places), max(places))]


def lasted(result: Result) -> float:
    return max((record.ended for record in result.records), default=0.0)


def bin_width(seconds: float) -> float:
    return next((width for width in WIDTHS if seconds <= width * MOST_BINS), WIDTHS[-1])


def token_rates(records: Sequence[Record], width: float) -> list[Point]:
    """Return the begin of each bin and its tokens per second, without the last bin, which is incomplete."""
    tokens: dict[int, float] = defaultdict(float)
    for record in records:
        for at in record.times or [record.ended]:
            tokens[int(at / width)] += record.num_tokens / (len(record.times) or 1)
    return [(place * width, tokens[place] / width) for place in range(max(tokens, default=0))]


def under_way(records: Sequence[Record], seconds: float) -> list[Point]:
    """Return the number of requests in flight at equally spaced times."""
    sent, ended = sorted(record.sent for record in records), sorted(record.ended for record in records)
    times = [seconds * place / (MOST_POINTS - 1) for place in range(MOST_POINTS)]
    return [(at, bisect_right(sent, at) - bisect_right(ended, at)) for at in times]
