"""Tests of the benchmark of simulated replicas: its load, its balancer and its errors."""

import asyncio

import pytest

from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.experiments import replica_simulation_accuracy
from benchmarks.experiments.replica_simulation_accuracy import Balancer, PolicyAccuracy, ReplicaWorkload
from router.request import Request
from router.simulation.routing import LeastLoaded
from router.simulation.run_stats import RunStats


def test_simulation_gets_the_requests_that_are_sent() -> None:
    workload = ReplicaWorkload.draw(40, 5.0, 8, seed=3)
    for planned, arrival in zip(workload.planned, workload.arrivals, strict=True):
        assert (planned.at, len(planned.prompt), planned.output_tokens) == (
            arrival.arrived_at, len(arrival.request.prompt), arrival.num_output_tokens)
    prefixes = {planned.prompt[:256]: arrival.request.block_hashes
                for planned, arrival in zip(workload.planned, workload.arrivals, strict=True)}
    assert len(prefixes) == len(set(prefixes.values())) > 1
    assert len({planned.prompt for planned in workload.planned}) == 40


def test_balancer_counts_unfinished_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeClient:
        def __init__(self, _: object) -> None:
            self.ended = asyncio.Event()

        async def send_request(self, planned: PlannedRequest) -> RequestRecord:
            await self.ended.wait()
            return RequestRecord(planned, 0.0)

    monkeypatch.setattr(replica_simulation_accuracy, "LoadClient", FakeClient)

    async def scenario() -> list[int]:
        balancer, request = Balancer(["a", "b"], LeastLoaded(2, 0)), Request("a", (0,), 1)
        tasks = [asyncio.ensure_future(balancer._send_request(PlannedRequest(0, "x", 1), request)) for _ in range(3)]
        await asyncio.sleep(0)
        loads = [*balancer._loads]
        for client in balancer._clients:
            client.ended.set()  # type: ignore[attr-defined]
        await asyncio.gather(*tasks)
        return [*loads, *balancer._loads]

    assert asyncio.run(scenario()) == [2, 1, 0, 0]


def test_error_is_that_of_the_simulation() -> None:
    recorded, simulated = RunStats(ended_at=10.0, num_tokens=100), RunStats(ended_at=10.0, num_tokens=110)
    recorded.latencies["ttft"], simulated.latencies["ttft"] = [0.1] * 99, [0.08] * 99
    assert PolicyAccuracy("least", recorded, [simulated]).errors == {
        "tokens_per_second": 0.1, "ttft_p50_ms": -0.2, "ttft_p99_ms": -0.2}
