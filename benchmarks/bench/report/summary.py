"""Figures of a run: latencies, throughput, fairness and goodput.

An answer counts for latencies if its request was due within the window (in a closed loop: sent), and its tokens count
for throughput if they arrived within it. The tokens of an answer that was not streamed arrive when it ends.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, nan
from statistics import mean

from benchmarks.bench.load.request_records import RequestRecord
from router.simulation.run_stats import percentile

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class LatencyGoal:
    """Limits on the latencies, in seconds, within which an answer counts for goodput."""

    ttft: float = inf  # until the first token
    itl: float = inf  # from one token to the next, the mean of an answer
    e2e: float = inf  # until the end

    def is_met(self, record: RequestRecord) -> bool:
        ttft, per_token = record.time_to_first_token, record.time_per_output_token
        return ((ttft is None or ttft <= self.ttft) and (per_token is None or per_token <= self.itl)
                and record.latency <= self.e2e)


@dataclass(frozen=True, slots=True)
class DistributionStats:
    """Distribution of many values; NaN if there are none."""

    count: int
    mean: float
    least: float
    most: float
    p50: float
    p90: float
    p95: float
    p99: float

    @classmethod
    def from_values(cls, values: Iterable[float]) -> "DistributionStats":
        sorted_values = sorted(values)
        if not sorted_values:
            return cls(0, *[nan] * 7)
        return cls(len(sorted_values), mean(sorted_values), sorted_values[0], sorted_values[-1],
                   *(percentile(sorted_values, share) for share in PERCENTILES))


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Latencies, throughput, goodput and fairness of one run within its window."""

    seconds: float  # of the window
    requests: int  # due in the window
    failed: int
    first_token: DistributionStats  # seconds, as all that follow
    between_tokens: DistributionStats
    per_token: DistributionStats  # of each answer, after its first token
    latency: DistributionStats
    tokens: int  # that arrived within the window
    tokens_per_second: float
    requests_per_second: float  # successful ones
    goodput: float  # requests per second that met the goal; NaN without a goal
    prompt_tokens: int
    fairness: float  # Jain's index of the answers' tokens per second: 1 if all are equal


def summarize_run(records: Sequence[RequestRecord], window: tuple[float, float],
                  goal: LatencyGoal | None = None) -> RunSummary:
    start, end = window
    due_records = [record for record in records if start <= record.due_at < end]
    successful = [record for record in due_records if not record.error]
    completed = [record for record in records if not record.error and start <= record.ended <= end]
    seconds = end - start
    tokens = round(sum(count_tokens_within(record, start, end) for record in records))

    def per_second(count: float) -> float:
        return count / seconds if seconds > 0 else nan

    return RunSummary(
        seconds, len(due_records), len(due_records) - len(successful),
        DistributionStats.from_values(first for record in successful
                                      if (first := record.time_to_first_token) is not None),
        DistributionStats.from_values(gap for record in successful for gap in record.inter_token_times),
        DistributionStats.from_values(step for record in successful
                                      if (step := record.time_per_output_token) is not None),
        DistributionStats.from_values(record.latency for record in successful),
        tokens, per_second(tokens), per_second(len(completed)),
        per_second(sum(map(goal.is_met, completed))) if goal else nan,
        sum(record.prompt_tokens or record.ask.prompt_tokens or 0 for record in successful),
        compute_jain_index([record.num_tokens / record.latency for record in successful if record.latency > 0]))


def count_tokens_within(record: RequestRecord, start: float, end: float) -> float:
    """Return the tokens that arrived between begin and end, assuming equally many in each event."""
    if not record.times:
        return record.num_tokens if start <= record.ended <= end else 0
    return sum(start <= at <= end for at in record.times) * record.num_tokens / len(record.times)


def compute_jain_index(values: Sequence[float]) -> float:
    squares = sum(share * share for share in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else nan
