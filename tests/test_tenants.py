"""Guarantees for tenants in figures: service by weight under any flood, and hardly longer waits for a quiet tenant.

The real scheduler runs under a virtual clock.
"""

import random
from itertools import pairwise

import pytest
from support.scheduling.scheduler_simulation import RequestHistory, SchedulerSimulation, TrueCosts

from router.request import Request, Tenant
from router.scheduler.settings import SchedulerSettings
from router.scheduler.waiting_queue import COST_PER_GENERATED_TOKEN

GPU_8B_COSTS = TrueCosts(0.006, 3e-5, 4e-5, 4.4e-8, "cuda")
CPU_HALF_B_COSTS = TrueCosts(0.019, 3e-4, 7e-4, 2.5e-7, "cpu")
STALL_SECONDS_BY_DEVICE = {"cuda": 0.050, "cpu": 0.150}
STEPS_PER_WINDOW = 1000
LONG_TEST_MARK = pytest.mark.long
SAME_OUTPUT_LENGTHS = (16, 256), (16, 256)  # output lengths of two tenants
LONG_AND_SHORT_OUTPUT_LENGTHS = (200, 400), (16, 64)


def make_simulation(true_costs: TrueCosts, **options: int) -> SchedulerSimulation:
    policy = SchedulerSettings(max_concurrent_requests=10**6, max_batch_size=options.pop("batch", 32),
                               max_stall_seconds=STALL_SECONDS_BY_DEVICE[true_costs.device])
    return SchedulerSimulation(policy, true_costs, options.pop("num_blocks", 40_000), seed=1)


def make_random_request(rng: random.Random, tenant: Tenant, output: tuple[int, int] = (16, 256)) -> Request:
    return Request(f"{tenant.name}{rng.random()}", (7,) * rng.randint(16, 256), rng.randint(*output), tenant=tenant)


class TenantServiceRecorder:
    """Service of each tenant per window of steps: its computed tokens, with generated tokens counted double."""

    def __init__(self, world: SchedulerSimulation, tenants: list[Tenant]) -> None:
        self._world, self._tenants = world, tenants
        self.window_totals: list[list[float]] = []

    def record_window(self) -> None:
        if len(self._world.timed_steps) // STEPS_PER_WINDOW >= len(self.window_totals):
            self.window_totals.append([self._compute_service(tenant) / tenant.weight for tenant in self._tenants])

    def _compute_service(self, tenant: Tenant) -> float:
        histories = [history for history in self._world.histories.values()
                     if history.request.tenant is tenant and history.token_times]
        return sum(len(history.request.prompt) + COST_PER_GENERATED_TOKEN * len(history.token_times)
                   for history in histories)

    def compute_fairness(self) -> list[float]:
        """Return Jain's index of every window: 1 if all tenants got the same service for their weight."""
        shares = [[after - before for before, after in zip(*marks, strict=True)]
                  for marks in pairwise(self.window_totals)]
        return [sum(each) ** 2 / (len(each) * sum(share ** 2 for share in each)) for each in shares]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "weight", "outputs"),
                         [pytest.param(GPU_8B_COSTS, 1.0, SAME_OUTPUT_LENGTHS, marks=LONG_TEST_MARK),
                          (GPU_8B_COSTS, 3.0, LONG_AND_SHORT_OUTPUT_LENGTHS),
                          pytest.param(CPU_HALF_B_COSTS, 1.0, LONG_AND_SHORT_OUTPUT_LENGTHS, marks=LONG_TEST_MARK),
                          pytest.param(CPU_HALF_B_COSTS, 3.0, SAME_OUTPUT_LENGTHS, marks=LONG_TEST_MARK)],
                         ids=["GPU 1:1", "GPU 1:3, long and short answers", "CPU 1:1, long and short answers",
                              "CPU 1:3"])
def test_tenants_share_service_by_weight_despite_a_flood(
        model: TrueCosts, weight: float, outputs: tuple[tuple[int, int], tuple[int, int]]) -> None:
    world, rng = make_simulation(model), random.Random(3)
    flood, other = Tenant("flood"), Tenant("other", weight)
    output_of = dict(zip((flood.name, other.name), outputs, strict=True))
    service = TenantServiceRecorder(world, [flood, other])

    def send_next_request(history: RequestHistory) -> None:
        tenant = history.request.tenant
        world.add_arrival(make_random_request(rng, tenant, output_of[tenant.name]), world.now)

    world.on_end = send_next_request
    for tenant in [other] * 30 + [flood] * 3000:  # as many of each are unfinished at any time
        world.add_arrival(make_random_request(rng, tenant, output_of[tenant.name]))
    world.run(should_stop=lambda w: service.record_window() or len(w.timed_steps) >= 5 * STEPS_PER_WINDOW)
    assert len(service.compute_fairness()) >= 4
    # The first window counts the whole prompt of every request that has a token, so it is left out.
    assert min(service.compute_fairness()[1:]) >= 0.98


def measure_quiet_tenant_waits(true_costs: TrueCosts, num_flooding: int, rate: float,
                               **options: int) -> tuple[list[float], float]:
    """Return the sorted waits of a tenant with few requests, and the 99th percentile of the steps' seconds."""
    world, rng, own = make_simulation(true_costs, **options), random.Random(5), random.Random(9)
    flood, quiet = Tenant("flood"), Tenant("quiet")
    served = []

    def send_next_or_record(history: RequestHistory) -> None:
        if history.request.tenant is flood:
            world.add_arrival(make_random_request(rng, flood), world.now)
        else:
            served.append(history)

    world.on_end = send_next_or_record
    for _ in range(num_flooding):
        world.add_arrival(make_random_request(rng, flood))
    at = 5.0
    for _ in range(300):
        at += own.expovariate(rate)
        world.add_arrival(make_random_request(own, quiet), at)
    world.run(should_stop=lambda _: len(served) == 300)
    steps = sorted(step.seconds for step in world.timed_steps)
    return sorted(history.seconds_to_start for history in served), steps[int(0.99 * len(steps))]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "rate", "more"), [pytest.param(GPU_8B_COSTS, 4.0, {}, marks=LONG_TEST_MARK),
                                                     (GPU_8B_COSTS, 4.0, {"batch": 64, "num_blocks": 1000}),
                                                     pytest.param(CPU_HALF_B_COSTS, 0.4, {}, marks=LONG_TEST_MARK)],
                         ids=["GPU", "GPU with a small cache", "CPU"])
def test_quiet_tenant_waits_hardly_longer_than_alone(model: TrueCosts, rate: float, more: dict[str, int]) -> None:
    alone, _ = measure_quiet_tenant_waits(model, 0, rate, **more)
    flooded, step = measure_quiet_tenant_waits(model, 2000, rate, **more)
    assert flooded[297] <= 1.2 * alone[297] + step  # the 99th percentile
    assert flooded[-1] < 1.0
