"""Accuracy of `weft simulate --replicas`: real servers behind a balancer against the simulation of the same requests.

Each server is a real router with a shard that simulates a model, so that two cores serve several of them. The balancer
is this process, which is also the load: it routes with the simulation's policies, but by its own counts of unfinished
requests. The step times of the simulation come from a run of one server with other requests. For each policy, the
figures of the routers' recordings are compared with those that the simulation foresees: tokens per second and time to
first token, over all servers. `python -P -m benchmarks.experiments.replica_simulation_accuracy --help` lists the
settings. The last line is JSON.
"""

import asyncio
import os
import signal
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from math import ceil
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

import uvloop
from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.bench.load.arrivals import iter_random_burst_times
from benchmarks.bench.load.dialects import DIALECTS
from benchmarks.bench.load.generator import LoadClient, Target, raise_first_failure
from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.harness.experiment import ExperimentSettings, PositiveFloat, PositiveInt, run_experiment
from benchmarks.harness.processes import HOST, SIMULATED_SHARD_COSTS, run_router_and_shard
from benchmarks.harness.reporting import report_results
from router.request import Request
from router.simulation.replicas import ReplicaSettings, simulate_replicas
from router.simulation.routing import ROUTING_POLICIES, RoutingPolicy
from router.simulation.run_stats import RunStats, percentile
from router.simulation.simulate import SimulationCase
from router.simulation.trace import RequestArrival, WorkloadTrace, load_trace, parse_plain_arrival

POLICIES = ("round-robin", "least", "prefix")  # the shard does not simulate how long adapters take to load
OUTPUT_TOKENS_RANGE = (8, 48)
PREFIX_TOKENS, NUM_PREFIXES, PROMPT_TOKENS_RANGE = 256, 64, (272, 400)
SHARD_COSTS = SIMULATED_SHARD_COSTS | {"seconds_per_step": 0.02, "seconds_per_row": 0.0005,
                                       "seconds_per_chunk_token": 0.0002, "seconds_per_place": 1e-6}
NUM_BLOCKS = 640  # the cache of a server: a third of the prefixes beside the requests that run
NUM_SIMULATION_SEEDS = 4  # simulations with different random seeds, whose figures are pooled


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAccuracySettings(ExperimentSettings):
    replicas: Annotated[int, Parameter(validator=Number(gte=1))] = 3
    "Number of servers."
    requests: PositiveInt = 1200
    "Approximate number of requests per policy."
    bursts: PositiveFloat = 5.0
    "Bursts per second at random times, for all servers together."
    burst: PositiveInt = 8
    "Maximum number of requests in a burst."
    policies: Annotated[tuple[Literal[tuple(ROUTING_POLICIES)], ...],  # type: ignore[valid-type]
                        Parameter(consume_multiple=True)] = POLICIES
    "Which policies."


@dataclass(frozen=True, slots=True)
class ReplicaWorkload:
    """The same requests as the load sends them, and as the simulation plays them."""

    planned: list[PlannedRequest]
    arrivals: list[RequestArrival]

    @classmethod
    def draw(cls, number: int, bursts: float, burst: int, seed: int) -> "ReplicaWorkload":
        """Draw requests that begin with one of NUM_PREFIXES prefixes. A letter is a token of the simulated model."""
        random = Random(seed)
        planned, arrivals = [], []
        for index, at in enumerate(islice(iter_random_burst_times(bursts, burst, random), number)):
            num_prompt_tokens, num_output_tokens = random.randint(*PROMPT_TOKENS_RANGE), random.randint(
                *OUTPUT_TOKENS_RANGE)
            prefix = random.randrange(NUM_PREFIXES)
            text = f"{seed}-{prefix} ".ljust(PREFIX_TOKENS, "x") + f"{index} ".ljust(
                num_prompt_tokens - PREFIX_TOKENS, "y")
            planned.append(PlannedRequest(index, text, num_output_tokens, num_prompt_tokens, at=at))
            arrivals.append(parse_plain_arrival(index, {
                "at": at, "prompt_tokens": num_prompt_tokens, "output_tokens": num_output_tokens,
                "prefix": f"{prefix}", "prefix_tokens": PREFIX_TOKENS}))
        return cls(planned, arrivals)


class Balancer:
    """Load that sends each request to the server that a policy chooses, by its own counts of unfinished requests."""

    def __init__(self, urls: Sequence[str], policy: RoutingPolicy) -> None:
        self._clients = [LoadClient(Target(url, DIALECTS["tgi"])) for url in urls]
        self._policy = policy
        self._loads = [0] * len(urls)

    async def run(self, workload: ReplicaWorkload) -> list[RequestRecord]:
        tasks: list[asyncio.Task[RequestRecord]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for planned, arrival in zip(workload.planned, workload.arrivals, strict=True):
                    await self._clients[0].wait_until_due(planned)
                    tasks.append(group.create_task(self._send_request(planned, arrival.request)))
        finally:
            for client in self._clients:
                client.connection_pool.close()
        return [task.result() for task in tasks]

    async def _send_request(self, planned: PlannedRequest, request: Request) -> RequestRecord:
        choice = self._policy.choose(request, self._loads)
        self._loads[choice] += 1
        try:
            return await self._clients[choice].send_request(planned)
        finally:
            self._loads[choice] -= 1


def record_server_runs(workload: ReplicaWorkload, num_servers: int, policy_name: str, folder: Path) -> list[Path]:
    """Play the requests on newly started servers, and return the paths of their recordings."""
    with ExitStack() as stack:
        servers = [stack.enter_context(run_router_and_shard(
            2, settings={"max_batch_size": 16, "request_log": False}, record_folder=str(folder / f"{index}"),
            shard={"simulated": SHARD_COSTS | {"num_blocks": NUM_BLOCKS}})) for index in range(num_servers)]
        balancer = Balancer([f"http://{HOST}:{server.port}" for server in servers],
                            ROUTING_POLICIES[policy_name](num_servers, NUM_BLOCKS))
        raise_first_failure(uvloop.run(balancer.run(workload)))
        for server in servers:
            os.kill(server.router_pid, signal.SIGUSR1)
    # a router exits only after writing its recording
    return [next((folder / f"{index}").glob("weft-*.jsonl")) for index in range(num_servers)]


def read_recorded_stats(paths: Sequence[Path]) -> RunStats:
    """Return the figures of the servers together, as their schedulers saw them, without the time before the load."""
    parts = []
    for path in paths:
        trace = load_trace(path)
        stats = trace.recorded_stats
        assert stats is not None
        stats.ended_at -= stats.started_at + min((arrival.arrived_at for arrival in trace.arrivals), default=0.0)
        stats.started_at = 0.0
        parts.append(stats)
    return RunStats.merge(parts)


def simulate_servers(workload: ReplicaWorkload, like: Path, num_servers: int, policy_name: str) -> list[RunStats]:
    """Return the simulated figures of the servers together, for each seed."""
    model_case = SimulationCase.from_files(like, None, seed=0)
    return [RunStats.merge(simulate_replicas(
        SimulationCase(WorkloadTrace(workload.arrivals), model_case.timing_profile, model_case.config,
                       model_case.model_info, seed), ReplicaSettings(num_servers, policy_name), {}))
            for seed in range(NUM_SIMULATION_SEEDS)]


@dataclass(frozen=True, slots=True)
class PolicyAccuracy:
    """Recorded and simulated figures of one policy."""

    policy_name: str
    recorded: RunStats
    simulated: Sequence[RunStats]

    @property
    def figures(self) -> dict[str, tuple[float, float]]:
        """The recorded and the simulated value of each figure."""
        simulated_times = [time for stats in self.simulated for time in stats.latencies["ttft"]]
        mean_speed = sum(stats.tokens_per_second for stats in self.simulated) / len(self.simulated)
        return {"tokens_per_second": (self.recorded.tokens_per_second, mean_speed),
                **{f"ttft_p{share}_ms": (1e3 * self.recorded.percentile("ttft", share),
                                         1e3 * percentile(simulated_times, share)) for share in (50, 99)}}

    @property
    def errors(self) -> dict[str, float]:
        return {name: round(simulated / recorded - 1, 4) for name, (recorded, simulated) in self.figures.items()}

    def format_line(self) -> str:
        hits = [100 * stats.prefix_hit_share for stats in (self.recorded, self.simulated[0])]
        figures = ", ".join(f"{name} {recorded:.1f}, simulated {simulated:.1f} ({simulated / recorded - 1:+.1%})"
                            for name, (recorded, simulated) in self.figures.items())
        return f"{self.policy_name}: {figures}; prompt tokens from the cache {hits[0]:.1f} and {hits[1]:.1f} %"


def bench(settings: ReplicaAccuracySettings = ReplicaAccuracySettings()) -> None:
    """Compare real and simulated servers behind a balancer."""
    comparisons = []
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        root, share = Path(folder), settings.replicas
        calibration = ReplicaWorkload.draw(ceil(settings.requests / share), settings.bursts / share, settings.burst,
                                           seed=1)
        [like] = record_server_runs(calibration, 1, "round-robin", root / "one")
        for policy_name in settings.policies:
            workload = ReplicaWorkload.draw(settings.requests, settings.bursts, settings.burst, seed=2)
            recordings = record_server_runs(workload, settings.replicas, policy_name, root / policy_name)
            comparisons.append(PolicyAccuracy(policy_name, read_recorded_stats(recordings), simulate_servers(
                workload, like, settings.replicas, policy_name)))
    figures: dict[str, Any] = {comparison.policy_name: comparison.errors for comparison in comparisons} | {
        "replicas": settings.replicas, "requests": settings.requests, "bursts": settings.bursts}
    report_results("replicas", "\n".join(comparison.format_line() for comparison in comparisons), figures,
                   should_save=settings.save)


if __name__ == "__main__":
    run_experiment(bench)
