"""Cost of the router: CPU time per delivered token, and how long its shard waits for it between two steps.

A simulated shard, a router and this process, which is the load, communicate over real gRPC and HTTP. `python -P -m
benchmarks.experiments.router_cost --help` lists the settings; benchmarks/README.md defines the figures. The last line
is JSON.
"""

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

import uvloop
from cyclopts import Parameter

from benchmarks.harness import experiment, stream_load
from benchmarks.harness.processes import (
    HOST,
    ServerProcesses,
    read_machine_cpu_seconds,
    read_process_cpu_seconds,
    run_router_and_shard,
)
from benchmarks.harness.reporting import report_results
from router.simulation.run_stats import percentile

GOAL_POINT_STREAMS, GOAL_POINT_LOOK_AHEAD = 64, 2
WARM_UP_SECONDS = 0.5  # seconds before each window


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class RouterCostSettings(experiment.ExperimentSettings):
    streams: experiment.PositiveInts = (1, 4, 16, 64, 256)
    "Numbers of concurrent streams; one row for each."
    look_ahead: Annotated[tuple[Literal[1, 2], ...], Parameter(consume_multiple=True)] = (1, 2)
    "Values of the router's --look-ahead; one row for each."
    cache_scope: Literal["tenant", "global", "off"] = "tenant"
    "The router's --cache-scope. All prompts differ, so off shows what a prefix cache without hits costs."
    seconds: experiment.PositiveFloat = 3.0
    "Seconds of each measurement."
    repeat: experiment.PositiveInt = 3
    "Number of measurements of each row, in turn; the figures are medians."
    quick: bool = False
    "Test that everything works: one measurement of half a second per row."
    profile: str = ""
    "File for a cProfile profile of the router (of the last one started). It doubles the cost of a token."


@dataclass(frozen=True, slots=True)
class CpuUsageSnapshot:
    """Values of all clocks and counters at one time."""

    monotonic_seconds: float
    router_cpu_seconds: float
    benchmark_cpu_seconds: float  # router, shard and load together
    machine_cpu_seconds: float
    num_tokens: int

    @classmethod
    def from_server(cls, server: ServerProcesses, num_tokens: int) -> "CpuUsageSnapshot":
        router_cpu_seconds = read_process_cpu_seconds(server.router_pid)
        benchmark_cpu_seconds = router_cpu_seconds + read_process_cpu_seconds(server.shard_pid) + time.process_time()
        return cls(time.monotonic(), router_cpu_seconds, benchmark_cpu_seconds, read_machine_cpu_seconds(), num_tokens)


@dataclass(frozen=True, slots=True)
class RouterCostPoint:
    """Cost of the router with one number of streams and one look-ahead."""

    streams: int
    look_ahead: int
    tokens_per_second: float
    router_us_per_token: float
    shard_idle_share: float
    step_ms: float  # measured by the shard: 5 if it gets a core at once
    gap_p50_ms: float  # between two tokens of a stream, at the client
    gap_p99_ms: float
    cores: float  # that router, shard and load used together
    other_cores: float  # that everything else on the machine used meanwhile


async def measure_point(server: ServerProcesses, streams: int, look_ahead: int, seconds: float) -> RouterCostPoint:
    async with stream_load.run_background_streams(HOST, server.port, streams, seed=streams) as load:
        await load.run_for(WARM_UP_SECONDS)
        load.token_gaps = stream_load.make_empty_gaps()
        before = CpuUsageSnapshot.from_server(server, load.num_tokens)
        await load.run_for(seconds)
        after = CpuUsageSnapshot.from_server(server, load.num_tokens)
        token_gaps = load.token_gaps
    return make_point((streams, look_ahead), (before, after), server.read_step_timestamps(), token_gaps)


def make_point(streams_and_look_ahead: tuple[int, int], readings: tuple[CpuUsageSnapshot, CpuUsageSnapshot],
               step_times: Sequence[float], token_gaps: Sequence[float]) -> RouterCostPoint:
    before, after = readings
    seconds, num_tokens = after.monotonic_seconds - before.monotonic_seconds, after.num_tokens - before.num_tokens
    steps_in_window = select_steps_within(step_times, before.monotonic_seconds, after.monotonic_seconds)
    if not (num_tokens and steps_in_window):
        raise stream_load.InvalidAnswerError(f"no step or no token within {seconds:.1f} seconds")
    benchmark_cores = (after.benchmark_cpu_seconds - before.benchmark_cpu_seconds) / seconds
    return RouterCostPoint(
        *streams_and_look_ahead,
        tokens_per_second=num_tokens / seconds,
        router_us_per_token=1e6 * (after.router_cpu_seconds - before.router_cpu_seconds) / num_tokens,
        shard_idle_share=compute_idle_share(steps_in_window),
        step_ms=1e3 * statistics.fmean(end - begin for begin, end in steps_in_window),
        gap_p50_ms=1e3 * percentile(token_gaps, 50),
        gap_p99_ms=1e3 * percentile(token_gaps, 99),
        cores=benchmark_cores,
        other_cores=max(0.0, (after.machine_cpu_seconds - before.machine_cpu_seconds) / seconds - benchmark_cores))


def select_steps_within(times: Sequence[float], start: float, end: float) -> list[tuple[float, float]]:
    """Return begin and end of the steps that are entirely within the window."""
    return [step for step in zip(times[::2], times[1::2], strict=True) if start <= step[0] and step[1] <= end]


def compute_idle_share(steps: Sequence[tuple[float, float]]) -> float:
    """Return the share of time without a running step, from the first step's begin to the last one's end."""
    return 1 - sum(end - begin for begin, end in steps) / (steps[-1][1] - steps[0][0])


def measure_all_points(settings: RouterCostSettings) -> list[RouterCostPoint]:
    """Measure all points in turns; return one per streams and look-ahead, the median of its repetitions."""
    print(format_table([]), file=sys.stderr)
    points = [one for _ in range(settings.repeat) for one in iter_measured_points(settings)]
    return [experiment.median_point([one for one in points if (one.streams, one.look_ahead) == (streams, look_ahead)])
            for streams in settings.streams for look_ahead in settings.look_ahead]


def iter_measured_points(settings: RouterCostSettings) -> Iterator[RouterCostPoint]:
    for look_ahead in settings.look_ahead:
        with run_router_and_shard(look_ahead, settings.profile, {"cache_scope": settings.cache_scope}) as server:
            for streams in settings.streams:
                point = uvloop.run(measure_point(server, streams, look_ahead, settings.seconds))
                print(format_table([point]).splitlines()[1], file=sys.stderr, flush=True)
                yield point


TABLE_COLUMNS = (
    ("streams", "{0.streams}"), ("look-ahead", "{0.look_ahead}"), ("tokens/s", "{0.tokens_per_second:.0f}"),
    ("us/token", "{0.router_us_per_token:.1f}"), ("idle %", "{1:.1f}"), ("step ms", "{0.step_ms:.2f}"),
    ("gap p50 ms", "{0.gap_p50_ms:.2f}"), ("gap p99 ms", "{0.gap_p99_ms:.2f}"), ("cores", "{0.cores:.2f}"),
    ("others", "{0.other_cores:.2f}"),
)


def format_table(points: Sequence[RouterCostPoint]) -> str:
    return experiment.format_columns(TABLE_COLUMNS, [(one, 100 * one.shard_idle_share) for one in points])


def make_summary(settings: RouterCostSettings, points: Sequence[RouterCostPoint]) -> dict[str, Any]:
    """Return the results, the goal's two figures first; these are None if its point was not measured."""
    goal_point = next((one for one in points if (one.streams, one.look_ahead)
                       == (GOAL_POINT_STREAMS, GOAL_POINT_LOOK_AHEAD)), None)
    return {
        "router_us_per_token": goal_point and round(goal_point.router_us_per_token, 2),
        "shard_idle_share": goal_point and round(goal_point.shard_idle_share, 4),
        "seconds": settings.seconds,
        "repeat": settings.repeat,
        "cache_scope": settings.cache_scope,
        "points": [{name: round(value, 4) for name, value in asdict(one).items()} for one in points],
    }


def bench(settings: RouterCostSettings = RouterCostSettings()) -> None:
    """Measure the router's CPU microseconds per delivered token, and the share of time that its shard waits."""
    settings = replace(settings, seconds=0.5, repeat=1) if settings.quick else settings
    points = measure_all_points(settings)
    report_results("router", format_table(points), make_summary(settings, points), should_save=settings.save)


if __name__ == "__main__":
    experiment.run_experiment(bench)
