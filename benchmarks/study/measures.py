"""The figures of one run, from its records alone. Pure arithmetic; figures.py makes bands of those of several seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import nan
from statistics import median

from benchmarks.bench.record import Record
from benchmarks.bench.summary import jain, tokens_in
from benchmarks.study.arithmetic import fitted, mean, mean_by
from benchmarks.study.plan import SOLO, SWEEP, SWEET, TOGETHER, USERS, Pace, Points
from benchmarks.study.policies import DYNAMIC, FIXED, NOBATCH
from benchmarks.study.raw import Taken
from router.figures import percentile

SETTLED = 0.5  # of the time in which requests came, in which batches fill, and which does not count for throughput
KEPT_UP = 0.75  # of what was asked for: who serves less than that is at the end
USERS_SLOWDOWN = 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One that came."""

    tokens: int  # that were asked for
    seconds: float  # by the clock that the policy is judged by
    ended: float
    alone: float  # seconds it takes when nobody else is there
    first: float | None  # seconds until the first token

    @property
    def slowdown(self) -> float:
        return self.seconds / self.alone

    @property
    def wait(self) -> float:
        """Until the first token. Who was told everything at once waited for what others took."""
        return self.first if self.first is not None else max(0.0, self.seconds - self.alone)


def answers(taken: Taken, pace: Pace) -> list[Answer]:
    """Without those that failed."""
    return [Answer(record.ask.output_tokens, seconds_of(record), record.ended,
                   pace.seconds(taken.run, record.ask.output_tokens), record.first_token)
            for record in taken.records if not record.error]


def seconds_of(record: Record) -> float:
    """In the study's mode by the server's clock, which begins when a request is heard, as no client knows."""
    return record.latency if record.told_seconds is None else record.told_seconds


def seconds_alone(records: Sequence[Record]) -> Points:
    """The least of each length: whatever else happens on a machine only adds to it."""
    found: dict[float, float] = {}
    for record in records:
        if not record.error:
            tokens, seconds = record.ask.output_tokens, seconds_of(record)
            found[tokens] = min(seconds, found.get(tokens, seconds))
    return tuple(sorted(found.items()))


def pace_of(takens: Iterable[Taken]) -> Pace:
    """From the runs that are made for it."""
    found = {(taken.run.policy, taken.run.workload): taken.records for taken in takens if taken.run.part == SOLO}
    alone = {key: seconds_alone(records) for key, records in found.items()}
    return Pace(alone.get((NOBATCH, "short"), ()), alone.get((FIXED, "short"), ()), alone.get((FIXED, "long"), ()),
                rate(found.get((DYNAMIC, TOGETHER), ())))


def rate(records: Sequence[Record]) -> float:
    """Tokens a second, from the first question to the last answer."""
    there = [record for record in records if not record.error]
    if not there:
        return nan
    seconds = max(record.ended for record in there) - min(record.sent for record in there)
    return sum(record.ask.output_tokens for record in there) / seconds


def by_tokens(found: Sequence[Answer]) -> dict[float, float]:
    """Mean latency for each number of tokens that was asked for."""
    return mean_by((answer.tokens, answer.seconds) for answer in found)


def figures(found: Sequence[Answer]) -> dict[str, float]:
    """Of a run with a beginning and an end."""
    buckets, seconds = by_tokens(found), [answer.seconds for answer in found]
    tokens, line = sum(answer.tokens for answer in found), fitted(buckets)
    slowdowns = [answer.slowdown for answer in found]
    return {
        "mean_latency": mean(list(buckets.values())),  # over numbers of tokens, as in the study
        **{f"latency_p{share}": percentile(seconds, share) for share in (50, 95, 99)},
        "slope": line.slope, "intercept": line.intercept, "correlation": line.correlation,
        "latency_per_token": mean([answer.seconds / answer.tokens for answer in found]),
        "study_throughput": tokens / sum(seconds),  # its formula: tokens by seconds of requests
        "tokens_per_second": tokens / max(answer.ended for answer in found),  # by the clock on the wall
        "jain": jain([answer.tokens / answer.seconds for answer in found]),
        "slowdown": mean(slowdowns), "slowdown_p99": percentile(slowdowns, 99),
        "longest_wait": max(answer.wait for answer in found),
    }


def window(records: Sequence[Record]) -> tuple[float, float]:
    """In which requests were due, without its beginning."""
    last = max(record.due for record in records)
    return SETTLED * last, last


def served(records: Sequence[Record]) -> float:
    """Tokens a second."""
    begin, end = window(records)
    return sum(tokens_in(record, begin, end) for record in records) / (end - begin)


def offered(records: Sequence[Record]) -> float:
    begin, end = window(records)
    return sum(record.ask.output_tokens for record in records if begin <= record.due <= end) / (end - begin)


def per_token(found: Sequence[Answer]) -> float:
    """The median of seconds for each token, waiting included."""
    return median(answer.seconds / answer.tokens for answer in found) if found else nan


def under_load(taken: Taken, pace: Pace) -> dict[str, float]:
    """Of a run in which requests come all the time."""
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
    """Of a run in which so many wait for an answer all the time; the last ones, beside whom fewer do, do not count."""
    found = answers(taken, pace)
    until = max(record.sent for record in taken.records)
    steady = [answer for answer in found if answer.ended <= until] or found
    return {"per_token_p50": per_token(steady), "tokens_per_second": sum(answer.tokens for answer in found)
            / max(answer.ended for answer in found)}


def is_enough(done: Sequence[Taken]) -> bool:
    """Whether a policy is at its end: twice in a row it did not keep up, or users wait twice as long as one alone."""
    part = done[-1].run.part
    if part in (SWEEP, SWEET):
        return len(done) > 1 and all(served(taken.records) < KEPT_UP * offered(taken.records) for taken in done[-2:])
    return part == USERS and slowness(done[-1]) > USERS_SLOWDOWN * slowness(done[0])


def slowness(taken: Taken) -> float:
    line = ((1.0, 1.0),)
    return with_users(taken, Pace(line, line, line))["per_token_p50"]
