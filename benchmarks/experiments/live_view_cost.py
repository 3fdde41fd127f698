"""Cost of being watched: throughput and the router's CPU time with and without viewers of `/v1/engine/events`, in turn.

A simulated shard, a router and this process, which is the load and the viewers, communicate over real gRPC and HTTP.
`python -P -m benchmarks.experiments.live_view_cost --help` lists the settings. The last line is JSON.
"""

import asyncio
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import uvloop
from cyclopts import Parameter

from benchmarks.experiments.router_cost import RouterCostPoint, measure_point
from benchmarks.harness.experiment import ExperimentSettings, PositiveFloat, PositiveInt, format_columns, run_experiment
from benchmarks.harness.processes import HOST, ServerProcesses, run_router_and_shard
from benchmarks.harness.reporting import report_results
from benchmarks.harness.stream_load import InvalidAnswerError

LOOK_AHEAD = 2
OK_STATUS_LINE = b"HTTP/1.1 200 "


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class LiveViewCostSettings(ExperimentSettings):
    streams: PositiveInt = 64
    "Number of concurrent streams."
    viewers: PositiveInt = 3
    "Number of viewers."
    seconds: PositiveFloat = 5.0
    "Seconds of each turn."
    rounds: PositiveInt = 6
    "Number of turns of each kind."


class ViewerConnection(asyncio.Protocol):
    """Connection of one viewer, which reads all events and keeps none."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.first_bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.WriteTransport", transport)
        self.transport.write(b"GET /v1/engine/events HTTP/1.1\r\nHost: localhost\r\n\r\n")

    def data_received(self, data: bytes) -> None:
        self.first_bytes = self.first_bytes or data[:20]
        self.num_bytes += len(data)


@asynccontextmanager
async def run_viewers(port: int, num_viewers: int) -> AsyncIterator[list[ViewerConnection]]:
    """Let viewers watch as long as the block runs."""
    loop, viewers = asyncio.get_running_loop(), list[ViewerConnection]()
    try:
        for _ in range(num_viewers):
            _, viewer = await loop.create_connection(ViewerConnection, HOST, port)
            viewers.append(viewer)
        yield viewers
    finally:
        for viewer in viewers:
            viewer.transport.abort()


@dataclass(frozen=True, slots=True)
class LiveViewCostPoint:
    """Measurements of a turn without viewers, and of the one beside it with them."""

    unwatched: RouterCostPoint
    watched: RouterCostPoint
    bytes_per_second: float  # that a viewer read

    @property
    def throughput_ratio(self) -> float:
        return self.watched.tokens_per_second / self.unwatched.tokens_per_second

    @property
    def cpu_ratio(self) -> float:
        return self.watched.router_us_per_token / self.unwatched.router_us_per_token


async def measure_watched(server: ServerProcesses,
                          settings: LiveViewCostSettings) -> tuple[RouterCostPoint, float]:
    async with run_viewers(server.port, settings.viewers) as viewers:
        point = await measure_point(server, settings.streams, LOOK_AHEAD, settings.seconds)
    for viewer in viewers:
        if not viewer.first_bytes.startswith(OK_STATUS_LINE):
            raise InvalidAnswerError(f"a viewer was answered {viewer.first_bytes!r}")
    return point, statistics.fmean(viewer.num_bytes for viewer in viewers) / settings.seconds


async def measure_turns(server: ServerProcesses,
                        settings: LiveViewCostSettings) -> list[LiveViewCostPoint]:
    """Measure the turns; that without viewers comes first in every other one."""
    turns: list[LiveViewCostPoint] = []
    for number in range(settings.rounds):
        if number % 2:
            watched, rate = await measure_watched(server, settings)
            unwatched = await measure_point(server, settings.streams, LOOK_AHEAD, settings.seconds)
        else:
            unwatched = await measure_point(server, settings.streams, LOOK_AHEAD, settings.seconds)
            watched, rate = await measure_watched(server, settings)
        turns.append(LiveViewCostPoint(unwatched, watched, rate))
    return turns


COLUMNS = (("tokens/s", "{0.unwatched.tokens_per_second:.0f}"), ("watched", "{0.watched.tokens_per_second:.0f}"),
           ("ratio", "{0.throughput_ratio:.3f}"), ("us/token", "{0.unwatched.router_us_per_token:.1f}"),
           ("watched", "{0.watched.router_us_per_token:.1f}"), ("ratio", "{0.cpu_ratio:.3f}"),
           ("kB/s", "{1:.0f}"), ("others", "{0.watched.other_cores:.2f}"))


def make_summary(settings: LiveViewCostSettings, turns: Sequence[LiveViewCostPoint]) -> dict[str, Any]:
    """Return the medians of both ratios, with the smallest and the largest."""
    ratios = {"throughput_ratio": [turn.throughput_ratio for turn in turns],
              "router_cpu_ratio": [turn.cpu_ratio for turn in turns]}
    return {"streams": settings.streams, "viewers": settings.viewers, "seconds": settings.seconds,
            "rounds": settings.rounds,
            **{name: {"median": round(statistics.median(values), 4), "min": round(min(values), 4),
                      "max": round(max(values), 4)} for name, values in ratios.items()}}


def bench(settings: LiveViewCostSettings = LiveViewCostSettings()) -> None:
    """Measure what viewers of the live batch cost."""
    with run_router_and_shard(LOOK_AHEAD) as server:
        turns = uvloop.run(measure_turns(server, settings))
    report_results("watched", format_columns(COLUMNS, [(turn, turn.bytes_per_second / 1000) for turn in turns]),
                   make_summary(settings, turns), should_save=settings.save)


if __name__ == "__main__":
    run_experiment(bench)
