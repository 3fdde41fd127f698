"""Figures of a run: latencies, throughput, fairness and goodput.

An answer counts for latencies if its request was due within the window (in a closed loop: sent), and its tokens count
for throughput if they arrived within it. The tokens of an answer that was not streamed arrive when it ends.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, nan
from statistics import mean

from benchmarks.bench.load.record import Record
from router.simulation.report import percentile

SHARES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Goal:
    """Limits on the latencies, in seconds, within which an answer counts for goodput."""

    ttft: float = inf  # until the first token
    itl: float = inf  # from one token to the next, the mean of an answer
    e2e: float = inf  # until the end

    def is_met(self, record: Record) -> bool:
        first, step = record.first_token, record.seconds_per_token
        return ((first is None or first <= self.ttft) and (step is None or step <= self.itl)
                and record.latency <= self.e2e)


@dataclass(frozen=True, slots=True)
class Spread:
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
    def of(cls, values: Iterable[float]) -> "Spread":
        ordered = sorted(values)
        if not ordered:
            return cls(0, *[nan] * 7)
        return cls(len(ordered), mean(ordered), ordered[0], ordered[-1],
                   *(percentile(ordered, share) for share in SHARES))


@dataclass(frozen=True, slots=True)
class Summary:
    seconds: float  # of the window
    requests: int  # due in the window
    failed: int
    first_token: Spread  # seconds, as all that follow
    between_tokens: Spread
    per_token: Spread  # of each answer, after its first token
    latency: Spread
    tokens: int  # that arrived within the window
    tokens_per_second: float
    requests_per_second: float  # successful ones
    goodput: float  # requests per second that met the goal; NaN without a goal
    prompt_tokens: int
    fairness: float  # Jain's index of the answers' tokens per second: 1 if all are equal


def summary(records: Sequence[Record], window: tuple[float, float], goal: Goal | None = None) -> Summary:
    begin, end = window
    here = [record for record in records if begin <= record.due < end]
    good = [record for record in here if not record.error]
    ended = [record for record in records if not record.error and begin <= record.ended <= end]
    seconds = end - begin
    tokens = round(sum(tokens_in(record, begin, end) for record in records))

    def rate(count: float) -> float:
        return count / seconds if seconds > 0 else nan

    return Summary(
        seconds, len(here), len(here) - len(good),
        Spread.of(first for record in good if (first := record.first_token) is not None),
        Spread.of(gap for record in good for gap in record.gaps),
        Spread.of(step for record in good if (step := record.seconds_per_token) is not None),
        Spread.of(record.latency for record in good),
        tokens, rate(tokens), rate(len(ended)), rate(sum(map(goal.is_met, ended))) if goal else nan,
        sum(record.prompt_tokens or record.ask.prompt_tokens or 0 for record in good),
        jain([record.num_tokens / record.latency for record in good if record.latency > 0]))


def tokens_in(record: Record, begin: float, end: float) -> float:
    """Return the tokens that arrived between begin and end, assuming equally many in each event."""
    if not record.times:
        return record.num_tokens if begin <= record.ended <= end else 0
    return sum(begin <= at <= end for at in record.times) * record.num_tokens / len(record.times)


def jain(shares: Sequence[float]) -> float:
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else nan
