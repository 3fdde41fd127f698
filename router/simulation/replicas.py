"""Simulation of a trace on several replicas behind a balancer, each a core of its own, under one virtual clock.
`python -P -m router.simulation.replicas JSON`, with the object of `router.simulation.simulate` and `replicas`, `route`,
and `adapter_load_ms`."""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isnan
from typing import Any

from router.simulation.routing import ROUTING_POLICIES, RoutingPolicy
from router.simulation.run_stats import RunStats, align_columns, format_seconds_as_ms
from router.simulation.simulate import Simulation, SimulationCase, make_simulation_case
from router.simulation.trace import RequestArrival

MAX_REPLICAS = 1_000  # each is a scheduler of its own, in one process
MAX_COLUMNS = 8  # replicas that the table shows; of more, those with the fewest and the most tokens


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """How many replicas there are, how requests are routed, and how long an adapter takes to load."""

    num_replicas: int
    route: str = "round-robin"
    adapter_load_seconds: float = 0.1

    def __post_init__(self) -> None:
        if not 1 <= self.num_replicas <= MAX_REPLICAS:
            raise ValueError(f"--replicas must be at least 1 and at most {MAX_REPLICAS}, got {self.num_replicas}")
        if self.route not in ROUTING_POLICIES:
            raise ValueError(f"--route must be one of {', '.join(ROUTING_POLICIES)}, got {self.route}")
        if self.adapter_load_seconds < 0:
            raise ValueError(f"--adapter-load-ms must be at least 0, got {1000 * self.adapter_load_seconds:g}")


class ReplicaSimulation:
    """Event loop of several simulated replicas. Each request goes to the replica that the policy chooses when it
    arrives, from what the balancer knows then."""

    def __init__(self, replicas: list[Simulation], policy: RoutingPolicy) -> None:
        self.replicas = replicas
        self._policy = policy

    def run(self, arrivals: list[RequestArrival]) -> list[RunStats]:
        """Play the requests, in the order of their arrival, and return the figures of each replica."""
        for arrival in arrivals:
            self._advance_until(arrival.arrived_at)
            loads = [simulation.scheduler.num_unfinished for simulation in self.replicas]
            self.replicas[self._policy.choose(arrival.request, loads)].inject_arrival(arrival)
        self._advance_until(inf)
        return [simulation.stats for simulation in self.replicas]

    def _advance_until(self, until: float) -> None:
        """Let each replica do what it does before this time; they share nothing, so one after the other may."""
        for simulation in self.replicas:
            simulation.advance_until(until)


def simulate_replicas(case: SimulationCase, replica_settings: ReplicaSettings,
                      settings: Mapping[str, Any]) -> list[RunStats]:
    """Simulate the trace on several replicas with these settings. Raises ValueError for invalid settings."""
    replicas = [case_of_replica.create_simulation(settings, adapter_load_seconds=replica_settings.adapter_load_seconds)
                for case_of_replica in (replace(case, trace=replace(case.trace, arrivals=[]), seed=case.seed + index)
                                        for index in range(replica_settings.num_replicas))]
    policy = ROUTING_POLICIES[replica_settings.route](len(replicas), replicas[0].model_info.num_blocks)
    return ReplicaSimulation(replicas, policy).run(case.trace.arrivals)


def format_replica_table(stats_of_replicas: list[RunStats]) -> str:
    """Return a text table with a column for all replicas together and one for each."""
    numbered = [*enumerate(stats_of_replicas, 1)]
    if len(numbered) > MAX_COLUMNS:
        by_tokens = sorted(numbered, key=lambda column: column[1].num_tokens)
        numbered = [by_tokens[0], by_tokens[-1]]
    everything = RunStats.merge(stats_of_replicas)
    columns = {"all": everything, **{f"replica {number}": stats for number, stats in numbered}}
    seconds = everything.ended_at - everything.started_at
    rows = [["", *columns]]
    for words, kind, share in (("first token p50, ms", "ttft", 50), ("first token p99, ms", "ttft", 99),
                               ("between tokens p50, ms", "itl", 50), ("between tokens p99, ms", "itl", 99)):
        rows.append([words, *(format_seconds_as_ms(stats.percentile(kind, share)) for stats in columns.values())])
    for words, values in {
        "requests per second": [per_second(stats.num_requests, seconds) for stats in columns.values()],
        "tokens per second": [per_second(stats.num_tokens, seconds) for stats in columns.values()],
        "prompt tokens from the cache, %": [format_share(stats.prefix_hit_share) for stats in columns.values()],
        "adapter loads": [f"{stats.num_adapter_loads}" for stats in columns.values()],
        "refused": [f"{stats.num_rejected}" for stats in columns.values()],
    }.items():
        rows.append([words, *values])
    return align_columns(rows)


def per_second(number: int, seconds: float) -> str:
    return f"{number / seconds:.1f}" if seconds > 0 else "-"


def format_share(share: float) -> str:
    return "-" if isnan(share) else f"{100 * share:.1f}"


def simulate_and_report(case: SimulationCase, replica_settings: ReplicaSettings, settings: Mapping[str, Any]) -> str:
    started = time.monotonic()
    stats_of_replicas = simulate_replicas(case, replica_settings, settings)
    return (f"{len(case.trace.arrivals):,} requests on {replica_settings.num_replicas} replicas "
            f"({replica_settings.route}), simulated in {time.monotonic() - started:.1f} s\n"
            + format_replica_table(stats_of_replicas))


def main() -> None:
    arguments = json.loads(sys.argv[1])
    try:
        replica_settings = ReplicaSettings(arguments["replicas"], arguments["route"],
                                           arguments["adapter_load_ms"] / 1000)
        report = simulate_and_report(make_simulation_case(arguments), replica_settings, arguments.get("settings", {}))
    except ValueError as error:
        sys.stderr.write(f"weft: {error}\n")
        raise SystemExit(2) from None
    sys.stdout.write(report + "\n")


if __name__ == "__main__":
    main()
