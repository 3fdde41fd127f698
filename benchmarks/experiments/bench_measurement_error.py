"""Accuracy of `weft bench`: its figures for a server whose shard takes a fixed time for every step.

A simulated shard logs begin and end of every step. The true time of a token is the end of the step that generated it,
the true time between tokens that between two steps. `--help` lists the settings. The last line is JSON.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from statistics import mean
from time import perf_counter
from typing import Annotated

import uvloop
from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.bench.load.dialects import DIALECTS
from benchmarks.bench.load.generator import Target, run_load
from benchmarks.bench.load.prompts import count_words
from benchmarks.bench.load.request_records import RequestRecord
from benchmarks.bench.load.workload import WorkloadSettings, make_requests
from benchmarks.bench.report.summary import summarize_run
from benchmarks.harness import experiment
from benchmarks.harness.cpu_steal_retry import MAX_STEAL_SHARE, CpuStealRetry
from benchmarks.harness.processes import HOST, SIMULATED_SHARD_COSTS, run_router_and_shard
from benchmarks.harness.reporting import report_results
from router.simulation.run_stats import align_columns

WARM_UP_SECONDS = 0.5


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class BenchMeasurementErrorSettings(experiment.ExperimentSettings):
    streams: experiment.PositiveInts = (1, 8, 64)
    "Numbers of concurrent clients; one row for each."
    step_ms: experiment.PositiveFloat = 200.0
    "Duration of a step in milliseconds."
    tokens: Annotated[int, Parameter(validator=Number(gte=2))] = 20
    "Output length of each request in tokens."
    seconds: Annotated[float, Parameter(validator=Number(gt=WARM_UP_SECONDS))] = 15.0
    "Seconds of each measurement."
    repeat: experiment.PositiveInt = 3
    "Number of measurements; the figures are medians."
    stolen: experiment.NonNegativeFloat = MAX_STEAL_SHARE
    "Maximum steal time of a run, as a share of the processors; a run with more is repeated."


@dataclass(frozen=True, slots=True)
class BenchMeasurementErrorPoint:
    """Relative errors (reported / true - 1), reported figures, and absolute errors."""

    streams: int
    first_token: float
    between_tokens: float
    throughput: float
    first_token_ms: float  # as reported
    between_tokens_ms: float
    tokens_per_second: float
    first_token_off_ms: float  # reported - true
    between_tokens_off_ms: float


async def run_bench_load(port: int, streams: int,
                         settings: BenchMeasurementErrorSettings) -> tuple[list[RequestRecord], float]:
    """Run the load; return its records, and the `perf_counter` time at which their clock began."""
    workload = WorkloadSettings(requests=4 * streams, prompt_tokens="6", output_tokens=f"{settings.tokens}")
    requests = await make_requests(workload, count_words)
    started_at = perf_counter()
    target = Target(f"http://{HOST}:{port}", DIALECTS["tgi"])
    return await run_load(target, cycle(requests), streams, seconds=settings.seconds), started_at


def compare_with_step_log(streams: int, records: Sequence[RequestRecord], steps: Sequence[float], started_at: float,
                          seconds: float) -> BenchMeasurementErrorPoint:
    """Compare reported with true figures. `steps` holds begin and end of each step, alternating."""
    step_ends = [end - started_at for end in steps[1::2]]
    ends_in_window = [end for end in step_ends if WARM_UP_SECONDS <= end < seconds]
    true_gap = (ends_in_window[-1] - ends_in_window[0]) / (len(ends_in_window) - 1)
    reported = summarize_run(records, (WARM_UP_SECONDS, seconds))
    sent_and_first_token = [(record.sent, step_ends[bisect_right(step_ends, record.times[0]) - 1]) for record in records
                            if WARM_UP_SECONDS <= record.sent < seconds]
    true_first_token = mean(end - sent for sent, end in sent_and_first_token)
    tokens = records[0].num_tokens
    true_tokens_per_second = streams * tokens / (true_first_token + (tokens - 1) * true_gap)
    reported_gap, reported_first_token = reported.between_tokens.mean, reported.first_token.mean
    return BenchMeasurementErrorPoint(streams, reported_first_token / true_first_token - 1, reported_gap / true_gap - 1,
                                      reported.tokens_per_second / true_tokens_per_second - 1,
                                      1000 * reported_first_token, 1000 * reported_gap, reported.tokens_per_second, 1000
                                      * (reported_first_token - true_first_token), 1000 * (reported_gap - true_gap))


def measure_points(settings: BenchMeasurementErrorSettings) -> list[BenchMeasurementErrorPoint]:
    points_by_streams: dict[int, list[BenchMeasurementErrorPoint]] = {streams: [] for streams in settings.streams}
    shard_settings = {"simulated": SIMULATED_SHARD_COSTS | {"seconds_per_step": settings.step_ms / 1000}}
    for streams in [*settings.streams] * settings.repeat:
        with run_router_and_shard(2, shard=shard_settings) as server:
            retry = CpuStealRetry[BenchMeasurementErrorPoint](settings.stolen)
            while retry.begin_next_attempt():
                records, started_at = uvloop.run(run_bench_load(server.port, streams, settings))
                retry.end_attempt(compare_with_step_log(streams, records, server.read_step_timestamps(), started_at,
                                                        settings.seconds))
            points_by_streams[streams].append(retry.best_attempt.result)
    return [experiment.median_point(points) for points in points_by_streams.values()]


def format_table(points: Sequence[BenchMeasurementErrorPoint]) -> str:
    """Return a table of relative errors, errors in milliseconds, and reported figures."""
    rows = [["streams", "first token", "off by, ms", "between tokens", "off by, ms", "tokens/s", "first token, ms",
             "between, ms", "tokens/s"]]
    rows += [[f"{point.streams:.0f}", f"{point.first_token:+.2%}", f"{point.first_token_off_ms:+.2f}",
              f"{point.between_tokens:+.2%}", f"{point.between_tokens_off_ms:+.3f}", f"{point.throughput:+.2%}",
              f"{point.first_token_ms:.2f}", f"{point.between_tokens_ms:.3f}", f"{point.tokens_per_second:.1f}"]
             for point in points]
    return align_columns(rows)


def bench(settings: BenchMeasurementErrorSettings = BenchMeasurementErrorSettings()) -> None:
    """Measure the error of `weft bench` against a shard whose steps take a fixed time."""
    points = measure_points(settings)
    results = {"settings": asdict(settings), "points": [asdict(point) for point in points]}
    report_results("truth", format_table(points), results, should_save=settings.save)


if __name__ == "__main__":
    experiment.run_experiment(bench)
