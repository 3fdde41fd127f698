"""Size of a fleet, in simulation: what N servers behind a balancer serve, by routing policy and rate.

Each server is the real scheduler on a virtual clock, whose steps take what those of Llama 3.1 8B took on an H100
(benchmarks/results/2026-11-27-nvidia-h100-80gb-hbm3.md, prompts 2026-11-26); HTTP, tokenization and the network cost
nothing. Requests arrive at random, begin with one of the shared prefixes, and use one of the adapters, if there are
any. `python -P -m benchmarks.experiments.replica_sizing --help` lists the settings. The last line is JSON.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import takewhile
from random import Random
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from benchmarks.bench.load.arrivals import iter_poisson_times
from benchmarks.harness.experiment import (
    ExperimentSettings,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    PositiveInts,
    format_columns,
    run_experiment,
)
from benchmarks.harness.reporting import report_results
from router.model_info import ModelInfo
from router.simulation.replicas import ReplicaSettings, simulate_replicas
from router.simulation.routing import ROUTING_POLICIES
from router.simulation.run_stats import RunStats
from router.simulation.simulate import SimulationCase
from router.simulation.timing_profile import TimingProfile
from router.simulation.trace import RequestArrival, WorkloadTrace, parse_plain_arrival

# Seconds of a step, and further ones for each row, prompt token and token read: decode steps of 1, 32 and 256 rows with
# 512 tokens each take 6.4, 7.4 and 14.6 ms, 2,048 tokens of prompts 58 ms.
STEP_COSTS = (0.0064, 1e-5, 2.5e-5, 4.3e-8)
NUM_BLOCKS = 28_000  # 448,000 tokens of 131 KB beside 16 GB of weights
COLUMNS = (("servers", "{0:d}"), ("route", "{1}"), ("req/s", "{2:.0f}"), ("of each", "{3:.1f}"),
           ("tokens/s", "{4:.0f}"), ("p50 ms", "{5:.0f}"), ("p99 ms", "{6:.0f}"), ("hits %", "{7:.0f}"),
           ("loads", "{8:d}"), ("refused", "{9:d}"))


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSizingSettings(ExperimentSettings):
    replicas: PositiveInts = (1, 2, 4, 8)
    "Number of servers."
    routes: Annotated[tuple[Literal[tuple(ROUTING_POLICIES)], ...],  # type: ignore[valid-type]
                      Parameter(consume_multiple=True)] = tuple(ROUTING_POLICIES)
    "Which policies."
    rates: Annotated[tuple[PositiveFloat, ...], Parameter(consume_multiple=True)] = (8.0,)
    "Requests per second and server."
    seconds: PositiveFloat = 60.0
    "Seconds for which requests arrive."
    prefixes: PositiveInt = 256
    "Number of shared prefixes."
    prefix_tokens: PositiveInt = 2048
    "Length of a shared prefix in tokens."
    own_tokens: PositiveInt = 256
    "Length of the rest of a prompt in tokens."
    output_tokens: PositiveInt = 128
    "Mean output length in tokens."
    adapters: Annotated[int, Parameter()] = 0
    "Number of adapters in use."
    adapter_slots: PositiveInt = 16
    "Number of adapters that a server holds."
    adapter_load_ms: NonNegativeFloat = 100.0
    "Time to load an adapter."


def draw_arrivals(settings: ReplicaSizingSettings, rate: float, seed: int = 0) -> Iterator[RequestArrival]:
    """Yield requests of random prefixes and adapters, `rate` a second."""
    random, adapter_ids = Random(seed), dict[str, int]()
    for number, at in enumerate(takewhile(lambda at: at < settings.seconds, iter_poisson_times(rate, random))):
        fields: dict[str, Any] = {
            "at": at, "prompt_tokens": settings.prefix_tokens + settings.own_tokens,
            "output_tokens": random.randint(1, 2 * settings.output_tokens - 1),
            "prefix": f"{random.randrange(settings.prefixes)}", "prefix_tokens": settings.prefix_tokens}
        if settings.adapters:
            fields["adapter"] = f"{random.randrange(settings.adapters)}"
        yield parse_plain_arrival(number, fields, adapter_ids)


@dataclass(frozen=True, slots=True)
class SizingPoint:
    """Figures of all servers together. Times are those to the first token."""

    servers: int
    route: str
    requests_per_second: float
    requests_per_server: float  # a second
    tokens_per_second: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    hit_percent: float  # of the tokens of prompts
    adapter_loads: int
    refused: int

    @classmethod
    def from_stats(cls, servers: int, route: str, stats: RunStats, seconds: float) -> "SizingPoint":
        """`seconds`: for how long requests arrived."""
        rate = (stats.num_requests - stats.num_rejected) / seconds
        return cls(servers, route, rate, rate / servers, stats.tokens_per_second, 1e3 * stats.percentile("ttft", 50),
                   1e3 * stats.percentile("ttft", 99), 100 * stats.prefix_hit_share, stats.num_adapter_loads,
                   stats.num_rejected)


def simulate_point(settings: ReplicaSizingSettings, servers: int, route: str, rate: float) -> SizingPoint:
    """Simulate servers at this rate per server."""
    model_info = ModelInfo("llama-3.1-8b", "cuda", "bfloat16", 128_256, 131_072, 16, NUM_BLOCKS)
    case = SimulationCase.for_model(WorkloadTrace([*draw_arrivals(settings, rate * servers)]),
                                    TimingProfile(STEP_COSTS), model_info)
    stats = simulate_replicas(case, ReplicaSettings(servers, route, settings.adapter_load_ms / 1000), {
        "max_concurrent_requests": 512, "max_active_adapters": settings.adapter_slots})
    return SizingPoint.from_stats(servers, route, RunStats.merge(stats), settings.seconds)


def bench(settings: ReplicaSizingSettings = ReplicaSizingSettings()) -> None:
    """Simulate fleets of several sizes."""
    started = time.monotonic()
    points = [simulate_point(settings, servers, route, rate)
              for rate in settings.rates for servers in settings.replicas for route in settings.routes]
    text = format_columns(COLUMNS, [tuple(asdict(point).values()) for point in points], width=11)
    report_results("sizing", f"{text}\nsimulated in {time.monotonic() - started:.0f} s",
                   {"points": [asdict(point) for point in points]}, should_save=settings.save)


if __name__ == "__main__":
    run_experiment(bench)
