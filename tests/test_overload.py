"""Guarantees under overload: waits are predicted, queue bounds are kept, no capacity is wasted.

The real scheduler runs under a virtual clock.
"""

import random
from dataclasses import replace
from statistics import median

import pytest
from support.cost_model_clock import Clockwork, Life, Model

from router.request import Request
from router.scheduler.plan import Prefill
from router.scheduler.settings import Policy

GPU_8B = Model(0.006, 3e-5, 4e-5, 4.4e-8, "cuda")
POLICY = Policy(max_concurrent_requests=10**6, stall_seconds=0.050)
Range = tuple[int, int]


def wanted(rng: random.Random, prompt: Range, output: Range, timeout: float | None = None) -> Request:
    return Request(str(rng.random()), (7,) * rng.randint(*prompt), rng.randint(*output), timeout=timeout)


def waves(seed: int, policy: Policy, num_blocks: int, load: tuple[float, Range, Range]) -> list[Life]:
    """Run requests at twice the rate for twenty seconds, then at half the rate, and so on.

    Return the requests from the second half of the time that waited for more than 0.1 seconds.
    """
    rng, at = random.Random(seed), 0.0
    world = Clockwork(policy, GPU_8B, num_blocks, seed=seed, foresee=True)
    rate, prompt, output = load
    for _ in range(700):
        at += rng.expovariate(rate * (0.5 if int(at / 20) % 2 else 2.0))
        world.arrive(wanted(rng, prompt, output), at)
    world.run()
    return [life for life in world.lives.values() if life.arrival > at / 2 and life.before_start > 0.1]


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "num_blocks", "load"), [
    ({"max_batch_size": 32}, 40_000, (9.0, (16, 256), (16, 512))),
    ({"max_batch_size": 256}, 700, (9.0, (16, 256), (16, 512))),
    ({"max_batch_size": 64}, 40_000, (5.0, (2000, 6000), (16, 64)))],
    ids=["places in the batch", "the cache", "prompts"])
def test_waits_are_foreseen_whatever_is_scarce(
        policy: dict[str, int], num_blocks: int, load: tuple[float, Range, Range]) -> None:
    lives = [life for seed in (1, 2, 3) for life in waves(seed, replace(POLICY, **policy), num_blocks, load)]
    assert len(lives) > 150
    assert median(abs(life.foreseen - life.before_start) / life.before_start for life in lives) <= 0.20


def test_nobody_starts_after_its_time_has_run_out() -> None:
    world, rng = Clockwork(replace(POLICY, max_batch_size=8), GPU_8B, seed=1), random.Random(4)
    for number in range(300):
        world.arrive(wanted(rng, (16, 256), (16, 256), timeout=rng.uniform(0.05, 2.0)), 0.02 * number)
    starts: dict[int, float] = {}
    world.run()
    for step in world.taken:
        newcomers = [one for message in step.plan.messages if isinstance(message, Prefill) for one in message.newcomers]
        starts |= {one.sequence: step.sent_at for one in newcomers if one.sequence not in starts}
    for number, life in world.lives.items():
        assert life.request.timeout is not None
        assert number in starts or life.is_expired
        assert starts.get(number, 0.0) <= life.arrival + life.request.timeout
        assert life.ended_at is not None
        assert life.ended_at <= life.arrival + life.request.timeout + 0.1 or not life.is_expired
    assert world.refused > 50  # requests that would not start in time are rejected at once
    assert sum(life.is_expired for life in world.lives.values()) > 5


def throughput(rate: float, seconds: float, **policy: float) -> tuple[Clockwork, float]:
    """Return the simulation and its generated tokens per second, from the fifth second on."""
    world, rng, at = Clockwork(replace(POLICY, max_batch_size=32, **policy), GPU_8B, seed=1), random.Random(1), 0.0
    while at < seconds:
        at += rng.expovariate(rate)
        world.arrive(wanted(rng, (16, 256), (16, 512)), at)
    world.run(until=lambda w: w.now >= seconds)
    times = [time for life in world.lives.values() for time in life.token_times if time >= 5.0]
    return world, len(times) / (seconds - 5.0)


@pytest.mark.slow
def test_with_five_times_the_capacity_the_excess_is_refused_and_the_rest_served_as_promised() -> None:
    _, peak = throughput(40.0, 25.0, max_concurrent_requests=400)
    world, served = throughput(5 * peak / 264, 25.0, max_queue_seconds=1.0)
    assert served >= 0.95 * peak
    waits = sorted(life.before_start for life in world.lives.values() if life.story and life.token_times)
    assert waits[int(0.99 * len(waits))] <= 1.2
    assert world.refused > 0.7 * (world.refused + len(world.lives))


@pytest.mark.parametrize("bound", [{"max_queue_requests": 10}, {"max_queue_tokens": 2000}])
def test_a_bound_on_the_queue_is_kept_and_does_not_count_what_can_start(bound: dict[str, int]) -> None:
    world, rng = Clockwork(replace(POLICY, max_batch_size=32, **bound), GPU_8B, seed=1), random.Random(1)
    for _ in range(32):
        world.arrive(wanted(rng, (16, 256), (64, 512)))
    longest = 0
    for number in range(300):
        world.arrive(wanted(rng, (16, 256), (64, 512)), 0.5 + 0.01 * number)

    def look(world: Clockwork) -> bool:
        nonlocal longest
        longest = max(longest, world.core.num_waiting() if world.now > 0.5 else 0)
        return False

    world.run(until=look)
    assert not [life for life in world.lives.values() if life.is_refused]
    assert world.refused > 100
    assert 0 < longest <= 32
