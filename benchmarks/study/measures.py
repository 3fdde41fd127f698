"""Figures of one run, from its records alone; figures.py computes bands over several seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import nan
from statistics import median

from benchmarks.bench.load.record import Record
from benchmarks.bench.report.summary import jain, tokens_in
from benchmarks.study.arithmetic import fitted, mean, mean_by
from benchmarks.study.plan import SOLO, SWEEP, SWEET, TOGETHER, USERS, Pace, Points
from benchmarks.study.policies import DYNAMIC, FIXED, NOBATCH
from benchmarks.study.records import Taken
from router.simulation.report import percentile

SETTLED = 0.5  # share of the arrivals' time during which batches fill, which does not count for throughput
KEPT_UP = 0.75  # share of the requested tokens: a policy that serves less is saturated
USERS_SLOWDOWN = 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer."""

    tokens: int  # requested
    seconds: float  # latency; in the study's mode by the server's clock
    ended: float
    alone: float  # its latency without other requests
    first: float | None  # seconds until the first token

    @property
    def slowdown(self) -> float:
        return self.seconds / self.alone

    @property
    def wait(self) -> float:
        """Seconds until the first token; for an answer that was not streamed, those that other requests cost it."""
        return self.first if self.first is not None else max(0.0, self.seconds - self.alone)


def answers(taken: Taken, pace: Pace) -> list[Answer]:
    """Return the answers of a run, without failed requests."""
    return [Answer(record.ask.output_tokens, seconds_of(record), record.ended,
                   pace.seconds(taken.run, record.ask.output_tokens), record.first_token)
            for record in taken.records if not record.error]


def seconds_of(record: Record) -> float:
    """Return the latency; in the study's mode by the server's clock, which starts when a handler takes the request."""
    return record.latency if record.told_seconds is None else record.told_seconds


def seconds_alone(records: Sequence[Record]) -> Points:
    """Return the lowest latency of each length: other activity on the machine only adds to it."""
    found: dict[float, float] = {}
    for record in records:
        if not record.error:
            tokens, seconds = record.ask.output_tokens, seconds_of(record)
            found[tokens] = min(seconds, found.get(tokens, seconds))
    return tuple(sorted(found.items()))


def pace_of(takens: Iterable[Taken]) -> Pace:
    """Return the pace from the runs of the part SOLO."""
    found = {(taken.run.policy, taken.run.workload): taken.records for taken in takens if taken.run.part == SOLO}
    alone = {key: seconds_alone(records) for key, records in found.items()}
    return Pace(alone.get((NOBATCH, "short"), ()), alone.get((FIXED, "short"), ()), alone.get((FIXED, "long"), ()),
                rate(found.get((DYNAMIC, TOGETHER), ())))


def rate(records: Sequence[Record]) -> float:
    """Return tokens per second, from the first request to the last answer."""
    there = [record for record in records if not record.error]
    if not there:
        return nan
    seconds = max(record.ended for record in there) - min(record.sent for record in there)
    return sum(record.ask.output_tokens for record in there) / seconds


def by_tokens(found: Sequence[Answer]) -> dict[float, float]:
    """Return the mean latency for each number of requested tokens."""
    return mean_by((answer.tokens, answer.seconds) for answer in found)


def figures(found: Sequence[Answer]) -> dict[str, float]:
    """Return the figures of a run with a fixed set of requests."""
    buckets, seconds = by_tokens(found), [answer.seconds for answer in found]
    tokens, line = sum(answer.tokens for answer in found), fitted(buckets)
    slowdowns = [answer.slowdown for answer in found]
    return {
        "mean_latency": mean(list(buckets.values())),  # over numbers of tokens, as in the study
        **{f"latency_p{share}": percentile(seconds, share) for share in (50, 95, 99)},
        "slope": line.slope, "intercept": line.intercept, "correlation": line.correlation,
        "latency_per_token": mean([answer.seconds / answer.tokens for answer in found]),
        "study_throughput": tokens / sum(seconds),  # the study's formula: tokens / request-seconds
        "tokens_per_second": tokens / max(answer.ended for answer in found),  # wall-clock time
        "jain": jain([answer.tokens / answer.seconds for answer in found]),
        "slowdown": mean(slowdowns), "slowdown_p99": percentile(slowdowns, 99),
        "longest_wait": max(answer.wait for answer in found),
    }


def window(records: Sequence[Record]) -> tuple[float, float]:
    """Return the time window in which requests were due, without its first SETTLED."""
    last = max(record.due for record in records)
    return SETTLED * last, last


def served(records: Sequence[Record]) -> float:
    """Return the tokens per second that arrived within the window."""
    begin, end = window(records)
    return sum(tokens_in(record, begin, end) for record in records) / (end - begin)


def offered(records: Sequence[Record]) -> float:
    begin, end = window(records)
    return sum(record.ask.output_tokens for record in records if begin <= record.due <= end) / (end - begin)


def per_token(found: Sequence[Answer]) -> float:
    """Return the median of seconds per token, waiting included."""
    return median(answer.seconds / answer.tokens for answer in found) if found else nan


def under_load(taken: Taken, pace: Pace) -> dict[str, float]:
    """Return the figures of a run with requests arriving all the time."""
    found = answers(taken, pace)
    firsts = [answer.first for answer in found if answer.first is not None]
    last = max(record.due for record in taken.records)
    return {
        "requests_per_second": len(taken.records) / last, "offered": offered(taken.records),
        "tokens_per_second": served(taken.records), "per_token_p50": per_token(found),
        **{f"latency_p{share}": percentile([answer.seconds for answer in found], share) for share in (50, 95)},
        "first_token_p50": percentile(firsts, 50), "first_token_p95": percentile(firsts, 95),
        "slowdown": mean([answer.slowdown for answer in found]),
        "jain": jain([answer.tokens / answer.seconds for answer in found]),
    }


def with_users(taken: Taken, pace: Pace) -> dict[str, float]:
    """Return the figures of a run with a constant number of users.

    The last answers, when fewer users are left, do not count for the latency."""
    found = answers(taken, pace)
    until = max(record.sent for record in taken.records)
    steady = [answer for answer in found if answer.ended <= until] or found
    return {"per_token_p50": per_token(steady), "tokens_per_second": sum(answer.tokens for answer in found)
            / max(answer.ended for answer in found)}


def is_enough(done: Sequence[Taken]) -> bool:
    """Return whether further runs add nothing.

    They do not once a policy failed to keep up twice in a row, or users wait more than twice as long as one alone."""
    part = done[-1].run.part
    if part in (SWEEP, SWEET):
        return len(done) > 1 and all(served(taken.records) < KEPT_UP * offered(taken.records) for taken in done[-2:])
    return part == USERS and slowness(done[-1]) > USERS_SLOWDOWN * slowness(done[0])


def slowness(taken: Taken) -> float:
    line = ((1.0, 1.0),)
    return with_users(taken, Pace(line, line, line))["per_token_p50"]
