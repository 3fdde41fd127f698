"""Figures of one run, from its records alone; study_summary.py computes bands over several seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import nan
from statistics import median

from benchmarks.bench.load.request_records import RequestRecord
from benchmarks.bench.report.summary import compute_jain_index, count_tokens_within
from benchmarks.study.compared_policies import DYNAMIC_POLICY, NOBATCH_POLICY, NONE_POLICY
from benchmarks.study.plan import (
    ALL_HANDLERS,
    SOLO_PART,
    SWEEP_PART,
    SWEET_SPOT_PART,
    USERS_PART,
    LatencyPoints,
    SoloCalibration,
)
from benchmarks.study.run_record_store import RunRecords
from benchmarks.study.statistics import fit_line, mean_by_key, mean_or_nan
from router.simulation.run_stats import percentile

WARM_UP_SHARE = 0.5  # share of the arrivals' time during which batches fill, which does not count for throughput
MIN_SERVED_SHARE = 0.75  # share of the requested tokens: a policy that serves less is saturated
USERS_SLOWDOWN = 2.0


@dataclass(frozen=True, slots=True)
class CompletedRequest:
    """A request that was answered without error, with its latencies."""

    num_tokens: int  # requested
    latency_seconds: float  # latency; in the study's mode by the server's clock
    ended_at: float
    solo_seconds: float  # its latency without other requests
    first_token_seconds: float | None  # seconds until the first token

    @property
    def slowdown(self) -> float:
        return self.latency_seconds / self.solo_seconds

    @property
    def wait_seconds(self) -> float:
        """Seconds until the first token; for an answer that was not streamed, those that other requests cost it."""
        return self.first_token_seconds if self.first_token_seconds is not None else max(0.0, self.latency_seconds
                                                                                         - self.solo_seconds)


def list_completed_requests(run_records: RunRecords, server_speed: SoloCalibration) -> list[CompletedRequest]:
    """Return the answers of a run, without failed requests."""
    return [CompletedRequest(record.ask.output_tokens, get_latency(record), record.ended,
                             server_speed.interpolate_latency(run_records.run, record.ask.output_tokens),
                             record.time_to_first_token) for record in run_records.records if not record.error]


def get_latency(record: RequestRecord) -> float:
    """Return the latency; in the study's mode by the server's clock, which starts when a handler takes the request."""
    return record.latency if record.told_seconds is None else record.told_seconds


def compute_solo_latencies(records: Sequence[RequestRecord]) -> LatencyPoints:
    """Return the lowest latency of each length: other activity on the machine only adds to it."""
    latency_by_tokens: dict[float, float] = {}
    for record in records:
        if not record.error:
            tokens, seconds = record.ask.output_tokens, get_latency(record)
            latency_by_tokens[tokens] = min(seconds, latency_by_tokens.get(tokens, seconds))
    return tuple(sorted(latency_by_tokens.items()))


def compute_solo_calibration(all_records: Iterable[RunRecords]) -> SoloCalibration:
    """Return how fast the server answers a single request, from the runs of SOLO_PART; the study scales its load so."""
    records_by_run = {(run_records.run.policy, run_records.run.workload): run_records.records
                      for run_records in all_records if run_records.run.part == SOLO_PART}
    solo_latencies = {key: compute_solo_latencies(records) for key, records in records_by_run.items()}
    return SoloCalibration(
        solo_latencies.get((NOBATCH_POLICY, "short"), ()), solo_latencies.get((NONE_POLICY, "short"), ()),
        solo_latencies.get((NONE_POLICY, "long"), ()),
        compute_tokens_per_second(records_by_run.get((DYNAMIC_POLICY, ALL_HANDLERS), ())))


def compute_tokens_per_second(records: Sequence[RequestRecord]) -> float:
    """Return tokens per second, from the first request to the last answer."""
    successful = [record for record in records if not record.error]
    if not successful:
        return nan
    seconds = max(record.ended for record in successful) - min(record.sent for record in successful)
    return sum(record.ask.output_tokens for record in successful) / seconds


def mean_latency_by_tokens(completed: Sequence[CompletedRequest]) -> dict[float, float]:
    """Return the mean latency for each number of requested tokens."""
    return mean_by_key((answer.num_tokens, answer.latency_seconds) for answer in completed)


def compute_fixed_load_metrics(completed: Sequence[CompletedRequest]) -> dict[str, float]:
    """Return the figures of a run with a fixed set of requests."""
    latency_by_tokens, latencies = mean_latency_by_tokens(completed), [answer.latency_seconds for answer in completed]
    total_tokens, line = sum(answer.num_tokens for answer in completed), fit_line(latency_by_tokens)
    slowdowns = [answer.slowdown for answer in completed]
    return {
        "mean_latency": mean_or_nan(list(latency_by_tokens.values())),  # over numbers of tokens, as in the study
        **{f"latency_p{share}": percentile(latencies, share) for share in (50, 95, 99)},
        "slope": line.slope, "intercept": line.intercept, "correlation": line.correlation,
        "latency_per_token": mean_or_nan([answer.latency_seconds / answer.num_tokens for answer in completed]),
        "study_throughput": total_tokens / sum(latencies),  # the study's formula: tokens / request-seconds
        "tokens_per_second": total_tokens / max(answer.ended_at for answer in completed),  # wall-clock time
        "jain": compute_jain_index([answer.num_tokens / answer.latency_seconds for answer in completed]),
        "slowdown": mean_or_nan(slowdowns), "slowdown_p99": percentile(slowdowns, 99),
        "longest_wait": max(answer.wait_seconds for answer in completed),
    }


def compute_measurement_window(records: Sequence[RequestRecord]) -> tuple[float, float]:
    """Return the time window in which requests were due, without its first WARM_UP_SHARE."""
    last_due = max(record.due_at for record in records)
    return WARM_UP_SHARE * last_due, last_due


def compute_served_tokens_per_second(records: Sequence[RequestRecord]) -> float:
    """Return the tokens per second that arrived within the window."""
    start, end = compute_measurement_window(records)
    return sum(count_tokens_within(record, start, end) for record in records) / (end - start)


def compute_offered_tokens_per_second(records: Sequence[RequestRecord]) -> float:
    start, end = compute_measurement_window(records)
    return sum(record.ask.output_tokens for record in records if start <= record.due_at <= end) / (end - start)


def median_normalized_latency(completed: Sequence[CompletedRequest]) -> float:
    """Return the median of seconds per token, waiting included."""
    return median(answer.latency_seconds / answer.num_tokens for answer in completed) if completed else nan


def compute_open_loop_metrics(run_records: RunRecords, server_speed: SoloCalibration) -> dict[str, float]:
    """Return the figures of a run with requests arriving all the time."""
    completed = list_completed_requests(run_records, server_speed)
    first_token_times = [answer.first_token_seconds for answer in completed if answer.first_token_seconds is not None]
    last_due = max(record.due_at for record in run_records.records)
    return {
        "requests_per_second": len(run_records.records) / last_due,
        "offered": compute_offered_tokens_per_second(run_records.records),
        "tokens_per_second": compute_served_tokens_per_second(run_records.records),
        "per_token_p50": median_normalized_latency(completed),
        **{f"latency_p{share}": percentile([answer.latency_seconds for answer in completed], share)
           for share in (50, 95)},
        "first_token_p50": percentile(first_token_times, 50), "first_token_p95": percentile(first_token_times, 95),
        "slowdown": mean_or_nan([answer.slowdown for answer in completed]),
        "jain": compute_jain_index([answer.num_tokens / answer.latency_seconds for answer in completed]),}


def compute_closed_loop_metrics(run_records: RunRecords, server_speed: SoloCalibration) -> dict[str, float]:
    """Return the figures of a run with a constant number of users.

    The last answers, when fewer users are left, do not count for the latency."""
    completed = list_completed_requests(run_records, server_speed)
    last_sent = max(record.sent for record in run_records.records)
    steady = [answer for answer in completed if answer.ended_at <= last_sent] or completed
    return {"per_token_p50": median_normalized_latency(steady),
            "tokens_per_second": sum(answer.num_tokens for answer in completed)
            / max(answer.ended_at for answer in completed)}


def should_stop_runs(finished_runs: Sequence[RunRecords]) -> bool:
    """Return whether further runs add nothing.

    They do not once a policy failed to keep up twice in a row, or users wait more than twice as long as one alone."""
    part = finished_runs[-1].run.part
    if part in (SWEEP_PART, SWEET_SPOT_PART):
        return len(finished_runs) > 1 and all(compute_served_tokens_per_second(run_records.records) < MIN_SERVED_SHARE
                                              * compute_offered_tokens_per_second(run_records.records)
                                              for run_records in finished_runs[-2:])
    return part == USERS_PART and closed_loop_normalized_latency(
        finished_runs[-1]) > USERS_SLOWDOWN * closed_loop_normalized_latency(finished_runs[0])


def closed_loop_normalized_latency(run_records: RunRecords) -> float:
    unit_latencies = ((1.0, 1.0),)
    return compute_closed_loop_metrics(run_records,
                                       SoloCalibration(unit_latencies, unit_latencies, unit_latencies))["per_token_p50"]
