"""Guarantees for requests with adapters: each adapter gets its turn, and failed loads hardly delay other requests.

The real scheduler and the simulated shard run under a virtual clock.
"""

import random
from collections import Counter
from math import ceil

import pytest
from support.scheduling.simulated_world import SimulatedClient, SimulatedWorld

from router.config import RouterConfig
from router.request import LoadableResource, Request
from router.scheduler.sequence import RUNNING_PHASES, RequestPhase
from shard.config import SimulatedConfig
from shard.pb import shard_pb2 as pb

ADAPTER_BYTES = 100
CYCLE_SECONDS, MOVE_SECONDS = 0.5, 0.02
UNLIMITED = 1000


def make_world(*, num_slots: int, num_fitting_adapters: int, max_clients: int) -> SimulatedWorld:
    """Return a world in which `num_slots` adapters may be loaded at once, and the bytes of `num_fitting_adapters`
    fit."""
    config = RouterConfig(max_batch_prefill_tokens=512, max_batch_size=64, max_total_tokens=200,
                          max_active_adapters=num_slots, adapter_cycle_time_s=CYCLE_SECONDS,
                          max_concurrent_requests=max_clients)
    model = SimulatedConfig(num_blocks=2000, max_positions=256,
                            adapter_bytes=ADAPTER_BYTES * num_fitting_adapters + ADAPTER_BYTES // 2)
    world = SimulatedWorld(config, model, seed=7)
    world.move_seconds = MOVE_SECONDS
    return world


def make_client(name: str, adapter_id: int, arrives_at: float, max_new_tokens: int = 8) -> SimulatedClient:
    request = Request(name, tuple(random.Random(name).randrange(255) for _ in range(20)), max_new_tokens,
                      adapter=LoadableResource("adapter", adapter_id, ADAPTER_BYTES) if adapter_id else None)
    return SimulatedClient(request, arrives_at)


def run_to_end(world: SimulatedWorld, max_loaded: int) -> None:
    """Run to the end; assert that never more than `max_loaded` adapters are loaded."""
    while not world.has_no_events:
        world.run_next_event()
        assert len(world.worker.shard_state.loaded_ids[pb.KIND_ADAPTER]) <= max_loaded
    world.check_idle()


def get_longest_phase_time(world: SimulatedWorld, *phases: RequestPhase) -> float:
    """Return the longest time that a request spent in these phases together."""
    return max(sum(seconds for phase, seconds in timeline.seconds_by_phase(world.now).items() if phase in phases)
               for timeline in world.timelines if timeline is not None)


WAITING_PHASES = frozenset(RequestPhase) - RUNNING_PHASES


# -- turns


@pytest.mark.slow
@pytest.mark.parametrize("adapters", [5, 12, pytest.param(24, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
@pytest.mark.parametrize(("places", "fitting"), [(4, UNLIMITED), (UNLIMITED, 4)], ids=["places", "bytes"])
def test_adapter_wait_is_at_most_one_round_under_full_demand(places: int, fitting: int, adapters: int) -> None:
    """A round is adapters / places times the cycle time, the run of a request, an unload and a load."""
    times = [0.15 * turn for turn in range(2 * adapters + 6)]  # intervals shorter than a response
    world = make_world(num_slots=places, num_fitting_adapters=fitting, max_clients=adapters * len(times))
    for turn, at in enumerate(times):
        for adapter in range(1, adapters + 1):
            world.add_client(make_client(f"{adapter}-{turn}", adapter, at))
    run_to_end(world, 4)
    assert {one.end_reason for one in world.all_clients} == {"length"}
    rounds, wait_seconds = ceil(adapters / 4), get_longest_phase_time(world, *WAITING_PHASES)
    assert (rounds - 1) * CYCLE_SECONDS < wait_seconds <= rounds * (
        CYCLE_SECONDS + get_longest_phase_time(world, *RUNNING_PHASES) + 2 * MOVE_SECONDS)


# -- failed loads


@pytest.mark.slow
def test_failed_adapter_loads_occupy_neither_slots_nor_bytes() -> None:
    """Other requests get the same output, at most two cycles later; afterwards as many adapters fit as before."""
    def run_world(*, num_broken: int) -> tuple[SimulatedWorld, list[SimulatedClient]]:
        world = make_world(num_slots=4, num_fitting_adapters=4, max_clients=2000)
        world.fails_to_load = lambda resource: resource.id > UNLIMITED
        good = [world.add_client(make_client(f"good {number}", number % 4, 0.1 * number, 30)) for number in range(40)]
        for number in range(num_broken):
            world.add_client(make_client(f"broken {number}", UNLIMITED + 1 + number % 50, 0.004 * number))
        for number in range(4):
            world.add_client(make_client(f"last {number}", 10 + number, 100.0))
        run_to_end(world, 4)
        return world, good

    world, good = run_world(num_broken=1000)
    _, undisturbed = run_world(num_broken=0)
    ends = Counter(str(one.end_reason).partition(":")[0] for one in world.all_clients)
    assert ends == {"failed": 1000, "length": 44}
    assert [one.tokens for one in good] == [one.tokens for one in undisturbed]
    delays = [one.ended_at - other.ended_at for one, other in zip(good, undisturbed, strict=True)]
    assert max(delays) < 2 * CYCLE_SECONDS
    assert world.scheduler.resource_cache._num_users == {}
    assert {resource.id for resource in world.scheduler.resource_cache._cached} == {10, 11, 12, 13}
