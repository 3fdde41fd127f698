"""Points of a run's plots: distributions, fits and time series.

The number of points is limited, so that a long run makes no larger page than a short one.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from statistics import linear_regression
from typing import TypeVar

from benchmarks.bench.load.request_records import RequestRecord
from benchmarks.bench.report.result import BenchResult

MAX_LINE_POINTS = 300  # of a line
MAX_DOTS = 1500
MAX_BINS = 100
BIN_WIDTHS_SECONDS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800, 3600)  # seconds of a bin

Value = TypeVar("Value")
PlotPoint = tuple[float, float]


def select_successful_in_window(result: BenchResult) -> list[RequestRecord]:
    """Return the records that count for latencies: successful, and due within the window."""
    start, end = result.window
    return [record for record in result.records if not record.error and start <= record.due_at < end]


def cumulative_distribution(sorted_values: Sequence[float], minimum: float = 0.0) -> list[PlotPoint]:
    """Return the cumulative distribution in percent. Values below `minimum` are raised to it."""
    count = len(sorted_values)
    return [(max(sorted_values[index], minimum), 100 * (index + 1) / count)
            for index in downsample(range(count), MAX_LINE_POINTS)]


def downsample(values: Sequence[Value], max_values: int) -> list[Value]:
    """Return at most `max_values` of the values, at equal distances and with both ends."""
    if len(values) <= max_values:
        return list(values)
    return [values[index * (len(values) - 1) // (max_values - 1)] for index in range(max_values)]


def fit_line(points: Sequence[PlotPoint]) -> list[PlotPoint]:
    """Return both ends of the least-squares line; empty if all x are equal."""
    xs = [x for x, _ in points]
    if len(set(xs)) < 2:
        return []
    slope, intercept = linear_regression(xs, [y for _, y in points])
    return [(x, slope * x + intercept) for x in (min(xs), max(xs))]


def compute_run_duration(result: BenchResult) -> float:
    return max((record.ended for record in result.records), default=0.0)


def choose_bin_width(duration: float) -> float:
    return next((width for width in BIN_WIDTHS_SECONDS if duration <= width * MAX_BINS), BIN_WIDTHS_SECONDS[-1])


def compute_token_rates(records: Sequence[RequestRecord], bin_width_seconds: float) -> list[PlotPoint]:
    """Return the begin of each bin and its tokens per second, without the last bin, which is incomplete."""
    tokens: dict[int, float] = defaultdict(float)
    for record in records:
        for at in record.times or [record.ended]:
            tokens[int(at / bin_width_seconds)] += record.num_tokens / (len(record.times) or 1)
    return [(index * bin_width_seconds, tokens[index] / bin_width_seconds) for index in range(max(tokens, default=0))]


def count_requests_in_flight(records: Sequence[RequestRecord], duration: float) -> list[PlotPoint]:
    """Return the number of requests in flight at equally spaced times."""
    sent, ended = sorted(record.sent for record in records), sorted(record.ended for record in records)
    times = [duration * index / (MAX_LINE_POINTS - 1) for index in range(MAX_LINE_POINTS)]
    return [(at, bisect_right(sent, at) - bisect_right(ended, at)) for at in times]
