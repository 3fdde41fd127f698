"""Guarantees under overload: waits are predicted, queue bounds are kept, no capacity is wasted.

The real scheduler runs under a virtual clock.
"""

import random
from dataclasses import replace
from statistics import median

import pytest
from support.scheduling.scheduler_simulation import RequestHistory, SchedulerSimulation, TrueCosts

from router.request import Request
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import Prefill

GPU_8B_COSTS = TrueCosts(0.006, 3e-5, 4e-5, 4.4e-8, "cuda")
BASE_SETTINGS = SchedulerSettings(max_concurrent_requests=10**6, max_stall_seconds=0.050)
IntRange = tuple[int, int]


def make_random_request(rng: random.Random, prompt: IntRange, output: IntRange,
                        timeout: float | None = None) -> Request:
    return Request(str(rng.random()), (7,) * rng.randint(*prompt), rng.randint(*output), timeout=timeout)


def run_load_waves(seed: int, settings: SchedulerSettings, num_blocks: int,
                   load: tuple[float, IntRange, IntRange]) -> list[RequestHistory]:
    """Run requests at twice the rate for twenty seconds, then at half the rate, and so on.

    Return the requests from the second half of the time that waited for more than 0.1 seconds.
    """
    rng, at = random.Random(seed), 0.0
    world = SchedulerSimulation(settings, GPU_8B_COSTS, num_blocks, seed=seed, predicts_waits=True)
    rate, prompt, output = load
    for _ in range(700):
        at += rng.expovariate(rate * (0.5 if int(at / 20) % 2 else 2.0))
        world.add_arrival(make_random_request(rng, prompt, output), at)
    world.run()
    return [history for history in world.histories.values()
            if history.arrived_at > at / 2 and history.seconds_to_start > 0.1]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(1,), pytest.param((1, 2, 3), marks=pytest.mark.long)], ids=["once", "thrice"])
@pytest.mark.parametrize(("policy", "num_blocks", "load"), [
    ({"max_batch_size": 32}, 40_000, (9.0, (16, 256), (16, 512))),
    ({"max_batch_size": 256}, 700, (9.0, (16, 256), (16, 512))),
    ({"max_batch_size": 64}, 40_000, (5.0, (2000, 6000), (16, 64)))],
    ids=["places in the batch", "the cache", "prompts"])
def test_predicted_waits_match_actual_waits_for_every_bottleneck(
        policy: dict[str, int], num_blocks: int, load: tuple[float, IntRange, IntRange],
        seeds: tuple[int, ...]) -> None:
    histories = [history for seed in seeds
                 for history in run_load_waves(seed, replace(BASE_SETTINGS, **policy), num_blocks, load)]
    assert len(histories) > 150
    relative_errors = [abs(history.predicted_wait - history.seconds_to_start) / history.seconds_to_start
                       for history in histories]
    assert median(relative_errors) <= 0.20


def test_no_request_starts_after_its_timeout() -> None:
    world, rng = SchedulerSimulation(replace(BASE_SETTINGS, max_batch_size=8), GPU_8B_COSTS, seed=1), random.Random(4)
    for number in range(300):
        world.add_arrival(make_random_request(rng, (16, 256), (16, 256), timeout=rng.uniform(0.05, 2.0)), 0.02 * number)
    starts: dict[int, float] = {}
    world.run()
    for step in world.timed_steps:
        newcomers = [one for message in step.plan.messages if isinstance(message, Prefill)
                     for one in message.new_sequences]
        starts |= {one.sequence_id: step.sent_at for one in newcomers if one.sequence_id not in starts}
    for number, history in world.histories.items():
        assert history.request.timeout is not None
        assert number in starts or history.is_expired
        assert starts.get(number, 0.0) <= history.arrived_at + history.request.timeout
        assert history.ended_at is not None
        assert history.ended_at <= history.arrived_at + history.request.timeout + 0.1 or not history.is_expired
    assert world.num_rejected > 50  # requests that would not start in time are rejected at once
    assert sum(history.is_expired for history in world.histories.values()) > 5


def measure_throughput(rate: float, seconds: float, **settings: float) -> tuple[SchedulerSimulation, float]:
    """Return the simulation and its generated tokens per second, from the fifth second on."""
    world, rng, at = SchedulerSimulation(replace(BASE_SETTINGS, max_batch_size=32, **settings), GPU_8B_COSTS,
                                         seed=1), random.Random(1), 0.0
    while at < seconds:
        at += rng.expovariate(rate)
        world.add_arrival(make_random_request(rng, (16, 256), (16, 512)), at)
    world.run(should_stop=lambda w: w.now >= seconds)
    times = [time for history in world.histories.values() for time in history.token_times if time >= 5.0]
    return world, len(times) / (seconds - 5.0)


@pytest.mark.slow
def test_excess_load_is_rejected_and_the_rest_served_in_time() -> None:
    _, peak = measure_throughput(40.0, 25.0, max_concurrent_requests=400)
    world, served = measure_throughput(5 * peak / 264, 25.0, max_queue_seconds=1.0)
    assert served >= 0.95 * peak
    waits = sorted(history.seconds_to_start for history in world.histories.values()
                   if history.timeline and history.token_times)
    assert waits[int(0.99 * len(waits))] <= 1.2
    assert world.num_rejected > 0.7 * (world.num_rejected + len(world.histories))


@pytest.mark.parametrize("bound", [{"max_queue_requests": 10}, {"max_queue_tokens": 2000}])
def test_queue_limit_is_kept_and_excludes_requests_that_can_start(bound: dict[str, int]) -> None:
    world, rng = SchedulerSimulation(replace(BASE_SETTINGS, max_batch_size=32, **bound), GPU_8B_COSTS,
                                     seed=1), random.Random(1)
    for _ in range(32):
        world.add_arrival(make_random_request(rng, (16, 256), (64, 512)))
    max_queue_length = 0
    for number in range(300):
        world.add_arrival(make_random_request(rng, (16, 256), (64, 512)), 0.5 + 0.01 * number)

    def record_queue_length(world: SchedulerSimulation) -> bool:
        nonlocal max_queue_length
        max_queue_length = max(max_queue_length, len(world.scheduler.waiting) if world.now > 0.5 else 0)
        return False

    world.run(should_stop=record_queue_length)
    assert not [history for history in world.histories.values() if history.is_rejected]
    assert world.num_rejected > 100
    assert 0 < max_queue_length <= 32
