"""Guarantees for tenants in figures: service by weight under any flood, and hardly longer waits for a quiet tenant.

The real scheduler runs under a virtual clock.
"""

import random
from itertools import pairwise

import pytest
from support.cost_model_clock import Clockwork, Life, Model

from router.request import Request, Tenant
from router.scheduler.fairness import PER_GENERATED_TOKEN
from router.scheduler.settings import Policy

GPU_8B = Model(0.006, 3e-5, 4e-5, 4.4e-8, "cuda")
CPU_HALF_B = Model(0.019, 3e-4, 7e-4, 2.5e-7, "cpu")
PROMISE = {"cuda": 0.050, "cpu": 0.150}
WINDOW = 1000  # steps
LONG = pytest.mark.long
ALIKE = (16, 256), (16, 256)  # output lengths of two tenants
LONG_AND_SHORT = (200, 400), (16, 64)


def made(model: Model, **more: int) -> Clockwork:
    policy = Policy(max_concurrent_requests=10**6, max_batch_size=more.pop("batch", 32),
                    stall_seconds=PROMISE[model.device])
    return Clockwork(policy, model, more.pop("num_blocks", 40_000), seed=1)


def wanted(rng: random.Random, tenant: Tenant, output: tuple[int, int] = (16, 256)) -> Request:
    return Request(f"{tenant.name}{rng.random()}", (7,) * rng.randint(16, 256), rng.randint(*output), tenant=tenant)


class Service:
    """Service of each tenant per window of steps: its computed tokens, with generated tokens counted double."""

    def __init__(self, world: Clockwork, tenants: list[Tenant]) -> None:
        self._world, self._tenants = world, tenants
        self.marks: list[list[float]] = []

    def note(self) -> None:
        if len(self._world.taken) // WINDOW >= len(self.marks):
            self.marks.append([self._got(tenant) / tenant.weight for tenant in self._tenants])

    def _got(self, tenant: Tenant) -> float:
        lives = [life for life in self._world.lives.values() if life.request.tenant is tenant and life.token_times]
        return sum(len(life.request.prompt) + PER_GENERATED_TOKEN * len(life.token_times) for life in lives)

    def fairness(self) -> list[float]:
        """Return Jain's index of every window: 1 if all tenants got the same service for their weight."""
        shares = [[after - before for before, after in zip(*marks, strict=True)] for marks in pairwise(self.marks)]
        return [sum(each) ** 2 / (len(each) * sum(share ** 2 for share in each)) for each in shares]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "weight", "outputs"), [
    (GPU_8B, 1.0, ALIKE), (GPU_8B, 3.0, LONG_AND_SHORT), pytest.param(CPU_HALF_B, 1.0, LONG_AND_SHORT, marks=LONG),
    pytest.param(CPU_HALF_B, 3.0, ALIKE, marks=LONG)],
    ids=["GPU 1:1", "GPU 1:3, long and short answers", "CPU 1:1, long and short answers", "CPU 1:3"])
def test_tenants_get_their_shares_though_one_asks_a_hundred_times_as_much(
        model: Model, weight: float, outputs: tuple[tuple[int, int], tuple[int, int]]) -> None:
    world, rng = made(model), random.Random(3)
    flood, other = Tenant("flood"), Tenant("other", weight)
    output_of = dict(zip((flood.name, other.name), outputs, strict=True))
    service = Service(world, [flood, other])

    def follow(life: Life) -> None:
        tenant = life.request.tenant
        world.arrive(wanted(rng, tenant, output_of[tenant.name]), world.now)

    world.on_end = follow
    for tenant in [other] * 30 + [flood] * 3000:  # as many of each are unfinished at any time
        world.arrive(wanted(rng, tenant, output_of[tenant.name]))
    world.run(until=lambda w: service.note() or len(w.taken) >= 5 * WINDOW)
    assert len(service.fairness()) >= 4
    assert min(service.fairness()[1:]) >= 0.98  # in the first window all prompts that have a token are counted whole


def quiet_waits(model: Model, num_flooding: int, rate: float, **more: int) -> tuple[list[float], float]:
    """Return the sorted waits of a tenant with few requests, and the 99th percentile of the steps' seconds."""
    world, rng, own = made(model, **more), random.Random(5), random.Random(9)
    flood, quiet = Tenant("flood"), Tenant("quiet")
    served = []

    def follow(life: Life) -> None:
        if life.request.tenant is flood:
            world.arrive(wanted(rng, flood), world.now)
        else:
            served.append(life)

    world.on_end = follow
    for _ in range(num_flooding):
        world.arrive(wanted(rng, flood))
    at = 5.0
    for _ in range(300):
        at += own.expovariate(rate)
        world.arrive(wanted(own, quiet), at)
    world.run(until=lambda _: len(served) == 300)
    steps = sorted(step.seconds for step in world.taken)
    return sorted(life.before_start for life in served), steps[int(0.99 * len(steps))]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "rate", "more"), [
    pytest.param(GPU_8B, 4.0, {}, marks=LONG), (GPU_8B, 4.0, {"batch": 64, "num_blocks": 1000}),
    pytest.param(CPU_HALF_B, 0.4, {}, marks=LONG)],
    ids=["GPU", "GPU with a small cache", "CPU"])
def test_a_quiet_tenant_waits_hardly_longer_than_alone(model: Model, rate: float, more: dict[str, int]) -> None:
    alone, _ = quiet_waits(model, 0, rate, **more)
    flooded, step = quiet_waits(model, 2000, rate, **more)
    assert flooded[297] <= 1.2 * alone[297] + step  # the 99th percentile
    assert flooded[-1] < 1.0
