"""Cost of the router: CPU time per delivered token, and how long its shard waits for it between two steps.

A simulated shard, a router and this process, which is the load, communicate over real gRPC and HTTP. `python -P -m
benchmarks.questions.router_cost --help` lists the settings; benchmarks/README.md defines the figures. The last line
is JSON.
"""

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Literal

import cyclopts
import uvloop
from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.harness.processes import HOST, NotStarted, Server, cpu_seconds, machine_seconds, serving
from benchmarks.harness.results import tell
from benchmarks.questions import router_load

GOAL_STREAMS, GOAL_LOOK_AHEAD = 64, 2
WARM_UP = 0.5  # seconds before each window


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    streams: Annotated[tuple[int, ...], Parameter(consume_multiple=True, validator=Number(gte=1))] = (1, 4, 16, 64, 256)
    "How many streams read at once; one point for each number."
    look_ahead: Annotated[tuple[Literal[1, 2], ...], Parameter(consume_multiple=True)] = (1, 2)
    "The router's --look-ahead; one point for each number."
    cache_scope: Literal["tenant", "global", "off"] = "tenant"
    "The router's --cache-scope. No prompt is like another, so off tells what a prefix cache costs that finds nothing."
    seconds: Annotated[float, Parameter(validator=Number(gt=0))] = 3.0
    "How long each point is measured."
    repeat: Annotated[int, Parameter(validator=Number(gte=1))] = 3
    "How often all points are measured, in turns; the figures are medians."
    quick: bool = False
    "Only to see that it works: once, half a second per point."
    save: bool = False
    "Keep what is printed under benchmarks/results."
    profile: str = ""
    "File for a profile of the router by cProfile, of the last router that was started. It doubles the cost of a token."


@dataclass(frozen=True, slots=True)
class Reading:
    """Values of all clocks and counters at one time."""

    time: float
    router: float
    ours: float  # router, shard and load together
    machine: float
    num_tokens: int

    @classmethod
    def take(cls, server: Server, num_tokens: int) -> "Reading":
        router = cpu_seconds(server.router)
        ours = router + cpu_seconds(server.shard) + time.process_time()
        return cls(time.monotonic(), router, ours, machine_seconds(), num_tokens)


@dataclass(frozen=True, slots=True)
class Point:
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


async def measure(server: Server, streams: int, look_ahead: int, seconds: float) -> Point:
    async with router_load.running(HOST, server.port, streams, seed=streams) as clients:
        await clients.last(WARM_UP)
        clients.gaps = router_load.no_gaps()
        before = Reading.take(server, clients.num_tokens)
        await clients.last(seconds)
        after = Reading.take(server, clients.num_tokens)
        gaps = clients.gaps
    return point((streams, look_ahead), (before, after), server.step_times(), gaps)


def point(where: tuple[int, int], window: tuple[Reading, Reading], steps: Sequence[float],
          gaps: Sequence[float]) -> Point:
    before, after = window
    seconds, num_tokens = after.time - before.time, after.num_tokens - before.num_tokens
    within = steps_within(steps, before.time, after.time)
    if not (num_tokens and within):
        raise router_load.BadAnswer(f"no step or no token within {seconds:.1f} seconds")
    ours = (after.ours - before.ours) / seconds
    return Point(
        *where,
        tokens_per_second=num_tokens / seconds,
        router_us_per_token=1e6 * (after.router - before.router) / num_tokens,
        shard_idle_share=idle_share(within),
        step_ms=1e3 * statistics.fmean(end - begin for begin, end in within),
        gap_p50_ms=1e3 * percentile(gaps, 0.50),
        gap_p99_ms=1e3 * percentile(gaps, 0.99),
        cores=ours,
        other_cores=max(0.0, (after.machine - before.machine) / seconds - ours))


def steps_within(times: Sequence[float], begin: float, end: float) -> list[tuple[float, float]]:
    """Return begin and end of the steps that are entirely within the window."""
    return [step for step in zip(times[::2], times[1::2], strict=True) if begin <= step[0] and step[1] <= end]


def idle_share(steps: Sequence[tuple[float, float]]) -> float:
    """Return the share of time without a running step, from the first step's begin to the last one's end."""
    return 1 - sum(end - begin for begin, end in steps) / (steps[-1][1] - steps[0][0])


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def run(settings: Settings) -> list[Point]:
    """Measure all points in turns; return one per streams and look-ahead, the median of its repetitions."""
    print(table([]), file=sys.stderr)
    points = [one for _ in range(settings.repeat) for one in run_once(settings)]
    return [median([one for one in points if (one.streams, one.look_ahead) == (streams, look_ahead)])
            for streams in settings.streams for look_ahead in settings.look_ahead]


def run_once(settings: Settings) -> Iterator[Point]:
    for look_ahead in settings.look_ahead:
        with serving(look_ahead, settings.profile, {"cache_scope": settings.cache_scope}) as server:
            for streams in settings.streams:
                one = uvloop.run(measure(server, streams, look_ahead, settings.seconds))
                print(line(one), file=sys.stderr, flush=True)
                yield one


def median(points: Sequence[Point]) -> Point:
    """Return a point with the median of every field."""
    values = {item.name: statistics.median([getattr(one, item.name) for one in points]) for item in fields(Point)}
    return Point(**values | {"streams": points[0].streams, "look_ahead": points[0].look_ahead})


COLUMNS = (
    ("streams", "{0.streams}"), ("look-ahead", "{0.look_ahead}"), ("tokens/s", "{0.tokens_per_second:.0f}"),
    ("us/token", "{0.router_us_per_token:.1f}"), ("idle %", "{1:.1f}"), ("step ms", "{0.step_ms:.2f}"),
    ("gap p50 ms", "{0.gap_p50_ms:.2f}"), ("gap p99 ms", "{0.gap_p99_ms:.2f}"), ("cores", "{0.cores:.2f}"),
    ("others", "{0.other_cores:.2f}"),
)


def line(one: Point) -> str:
    return " ".join(f"{form.format(one, 100 * one.shard_idle_share):>10}" for _, form in COLUMNS)


def table(points: Sequence[Point]) -> str:
    return "\n".join([" ".join(f"{name:>10}" for name, _ in COLUMNS), *map(line, points)])


def summary(settings: Settings, points: Sequence[Point]) -> dict[str, Any]:
    """Return the results, the goal's two figures first; these are None if its point was not measured."""
    goal = next((one for one in points if (one.streams, one.look_ahead) == (GOAL_STREAMS, GOAL_LOOK_AHEAD)), None)
    return {
        "router_us_per_token": goal and round(goal.router_us_per_token, 2),
        "shard_idle_share": goal and round(goal.shard_idle_share, 4),
        "seconds": settings.seconds,
        "repeat": settings.repeat,
        "cache_scope": settings.cache_scope,
        "points": [{name: round(value, 4) for name, value in asdict(one).items()} for one in points],
    }


def bench(settings: Settings = Settings()) -> None:
    """Measure the router's CPU microseconds per delivered token, and the share of time that its shard waits."""
    settings = replace(settings, seconds=0.5, repeat=1) if settings.quick else settings
    points = run(settings)
    tell("router", table(points), summary(settings, points), keep=settings.save)


def main() -> None:
    try:
        cyclopts.run(bench)
    except (router_load.BadAnswer, NotStarted) as error:
        raise SystemExit(f"benchmarks.questions.router_cost: {error}") from None


if __name__ == "__main__":
    main()
