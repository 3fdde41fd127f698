"""Guarantees for requests with adapters: each adapter gets its turn, and failed loads hardly delay other requests.

The real scheduler and the simulated shard run under a virtual clock.
"""

import random
from collections import Counter
from math import ceil

import pytest
from support.simulated_world import Client, World

from router.config import RouterConfig
from router.request import Request, Resource
from router.scheduler.timeline import RUNNING, Cause
from shard.config import SimulatedConfig
from shard.pb import shard_pb2 as pb

TAKES = 100  # bytes of an adapter
CYCLE, MOVE = 0.5, 0.02  # seconds
PLENTY = 1000


def world_of(*, places: int, fitting: int, clients: int) -> World:
    """Return a world in which `places` adapters may be loaded at once, and the bytes of `fitting` fit."""
    config = RouterConfig(max_batch_prefill_tokens=512, max_batch_size=64, max_total_tokens=200,
                          max_active_adapters=places, adapter_cycle_time_s=CYCLE, max_concurrent_requests=clients)
    model = SimulatedConfig(num_blocks=2000, max_positions=256, adapter_bytes=TAKES * fitting + TAKES // 2)
    world = World(config, model, seed=7)
    world.move_seconds = MOVE
    return world


def client(name: str, adapter: int, arrival: float, length: int = 8) -> Client:
    request = Request(name, tuple(random.Random(name).randrange(255) for _ in range(20)), length,
                      adapter=Resource("adapter", adapter, TAKES) if adapter else None)
    return Client(request, arrival)


def play(world: World, most: int) -> None:
    """Run to the end; assert that never more than `most` adapters are loaded."""
    while not world.is_at_rest:
        world.step()
        assert len(world.worker.ledger.loaded[pb.KIND_ADAPTER]) <= most
    world.check_idle()


def longest(world: World, *causes: Cause) -> float:
    """Return the longest time that a request spent on these causes together."""
    return max(sum(seconds for cause, seconds in story.seconds(world.now).items() if cause in causes)
               for story in world.stories if story is not None)


WAITING = frozenset(Cause) - RUNNING


# -- turns


@pytest.mark.slow
@pytest.mark.parametrize("adapters", [5, 12, pytest.param(24, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
@pytest.mark.parametrize(("places", "fitting"), [(4, PLENTY), (PLENTY, 4)], ids=["places", "bytes"])
def test_when_all_are_wanted_all_the_time_nobody_waits_for_longer_than_a_round(
        places: int, fitting: int, adapters: int) -> None:
    """A round is adapters / places times the cycle time, the run of a request, an unload and a load."""
    times = [0.15 * turn for turn in range(2 * adapters + 6)]  # intervals shorter than a response
    world = world_of(places=places, fitting=fitting, clients=adapters * len(times))
    for turn, at in enumerate(times):
        for adapter in range(1, adapters + 1):
            world.add(client(f"{adapter}-{turn}", adapter, at))
    play(world, 4)
    assert {one.end for one in world.everyone} == {"length"}
    rounds, waited = ceil(adapters / 4), longest(world, *WAITING)
    assert (rounds - 1) * CYCLE < waited <= rounds * (CYCLE + longest(world, *RUNNING) + 2 * MOVE)


# -- failed loads


@pytest.mark.slow
def test_a_thousand_that_cannot_be_loaded_take_neither_places_nor_bytes() -> None:
    """Other requests get the same output, at most two cycles later; afterwards as many adapters fit as before."""
    def woven(*, broken: int) -> tuple[World, list[Client]]:
        world = world_of(places=4, fitting=4, clients=2000)
        world.load_fails = lambda resource: resource.id > PLENTY
        good = [world.add(client(f"good {number}", number % 4, 0.1 * number, 30)) for number in range(40)]
        for number in range(broken):
            world.add(client(f"broken {number}", PLENTY + 1 + number % 50, 0.004 * number))
        for number in range(4):
            world.add(client(f"last {number}", 10 + number, 100.0))
        play(world, 4)
        return world, good

    world, good = woven(broken=1000)
    _, undisturbed = woven(broken=0)
    ends = Counter(str(one.end).partition(":")[0] for one in world.everyone)
    assert ends == {"failed": 1000, "length": 44}
    assert [one.tokens for one in good] == [one.tokens for one in undisturbed]
    late = [one.ended_at - other.ended_at for one, other in zip(good, undisturbed, strict=True)]
    assert max(late) < 2 * CYCLE
    assert world.core._residents._users == {}
    assert {resource.id for resource in world.core._residents._residents} == {10, 11, 12, 13}
