"""Tests of router/scheduler/resource_cache.py through the core: loading and eviction of adapters and grammars."""

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from support.simulated_world import Client, World, named

from router.config import RouterConfig
from router.request import ANYONE, Request, Resource, Tenant
from router.scheduler.events import Failed
from router.scheduler.fault_isolation import Loss
from router.scheduler.plan import Answer, AnswerRow, Bring, ModelFacts, Remove
from router.scheduler.resource_cache import MOST_IDLE_GRAMMARS, UNUSED_SECONDS
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy
from router.scheduler.timeline import Cause
from shard.config import SimulatedConfig
from shard.pb import shard_pb2 as pb

FACTS = ModelFacts("simulated", "cpu", "float32", 512, 4096, 16, 64, adapter_bytes=1000)


def adapter(number: int, takes: int = 100, *, stays: bool = False) -> Resource:
    return Resource("adapter", number, takes, stays)


CYCLE, MOVE = 0.5, 0.02  # seconds
A, B, C = adapter(1), adapter(2), adapter(3)


class House:
    """The core, with shards that carry out its loads and unloads when `carry_out` is called."""

    def __init__(self, **policy: Any) -> None:
        self.core = Scheduler(replace(Policy(look_ahead=1), **policy), FACTS)
        self.core.shards_ready(FACTS, 1, 0.0)
        self.now = 0.0

    def ask(self, adapter: Resource | None, output: int = 1, **more: Any) -> int:
        request = named(Request(str(self.now), (7,) * 20, output, adapter=adapter, **more), 16)
        event = self.core.submit(request, self.now)[0]
        return event.sequence  # type: ignore[union-attr]

    def moves(self) -> list[Bring | Remove]:
        self.core.expire(self.now)
        return self.core.moves(self.now)

    def carry_out(self) -> list[Bring | Remove]:
        moves = self.moves()
        for move in moves:
            done = self.core.available if isinstance(move, Bring) else self.core.removed
            done(move.resource, self.now)
        return moves

    def step(self) -> tuple[int, ...]:
        """Run one step and return the sequences in it."""
        plan = self.core.plan(self.now)
        if plan is None:
            return ()
        rows = {number: AnswerRow((9,), (0.0,)) for number in plan.expects}
        self.core.complete(plan.order, Answer(plan.epoch, 0.01, rows, {}), {}, self.now)
        return plan.members

    def serve(self, adapter: Resource) -> None:
        self.ask(adapter)
        self.carry_out()
        self.step()
        self.step()


def test_what_is_waited_for_comes_once() -> None:
    house = House()
    house.ask(A)
    house.ask(A)
    house.ask(B)
    assert house.moves() == [Bring(A), Bring(B)]
    assert house.moves() == []


def test_a_request_starts_when_its_adapter_is_there_and_others_do_not_wait_for_it() -> None:
    house = House()
    waits, passes = house.ask(A), house.ask(None)
    assert house.step() == (passes,)
    assert house.core.story(waits).cause is Cause.ADAPTER
    house.carry_out()
    assert house.step() == (waits,)


def test_who_needs_a_grammar_too_waits_for_both() -> None:
    house, grammar = House(), Resource("grammar", 1)
    number = house.ask(A, grammar=grammar)
    assert house.moves() == [Bring(A)]
    house.core.available(A, 0.0)
    assert house.moves() == [Bring(grammar)]
    assert house.step() == ()
    house.core.available(grammar, 0.0)
    assert house.step() == (number,)


def test_the_longest_unused_leaves_first_and_only_for_somebody() -> None:
    house = House(max_active_adapters=2)
    house.serve(A)
    house.serve(B)
    house.serve(A)
    assert house.moves() == []
    house.ask(C)
    assert house.carry_out() == [Remove(B)]
    assert house.carry_out() == [Bring(C)]


def test_as_many_leave_as_its_bytes_need() -> None:
    house = House()
    for number in range(1, 11):
        house.serve(adapter(number))
    house.ask(adapter(11, 250))
    assert house.carry_out() == [Remove(adapter(number)) for number in (1, 2, 3)]
    assert house.carry_out() == [Bring(adapter(11))]


def test_one_that_is_in_use_stays_for_its_time_and_then_until_who_runs_is_over() -> None:
    house = House(max_active_adapters=1, adapter_cycle_seconds=2.0)
    runs = house.ask(A, output=3)
    house.carry_out()
    house.step()
    waits = house.ask(B)
    assert house.moves() == []
    assert house.core.wake_at == 2.0
    house.now = 2.0
    later = house.ask(A)
    assert house.moves() == []  # a running request uses it
    assert house.core.story(later).cause is Cause.ADAPTER
    assert house.step() == house.step() == (runs,)
    assert house.carry_out() == [Remove(A)]
    assert house.carry_out() == [Bring(B)]
    assert house.step() == (waits,)
    house.step()
    assert house.carry_out() == [Remove(B)]
    house.carry_out()
    assert house.step() == (later,)


def test_an_adapter_does_not_leave_before_anybody_started_with_it() -> None:
    """Regression: with a cycle time of 0 the adapters replaced each other, and no request ever started."""
    house = House(max_active_adapters=1, adapter_cycle_seconds=0.0)
    house.ask(A)
    house.ask(B)
    house.carry_out()
    assert house.moves() == []
    house.step()
    house.step()
    assert house.carry_out() == [Remove(A)]


def test_it_leaves_when_who_needs_it_does_not_read() -> None:
    house = House(max_active_adapters=1, adapter_cycle_seconds=1.0)
    held = house.ask(A)
    house.carry_out()
    house.core.hold(held, 0.0)
    house.ask(B)
    house.moves()
    house.now = house.core.wake_at or 0.0
    assert house.now == 1.0 + UNUSED_SECONDS
    assert house.moves() == [Remove(A)]


def test_it_is_opened_again_when_nobody_waits_for_its_place_any_more() -> None:
    house = House(max_active_adapters=1, adapter_cycle_seconds=0.0)
    runs = house.ask(A, output=9)
    house.carry_out()
    house.step()
    waits, later = house.ask(B), house.ask(A)
    house.moves()
    house.core.cancel(waits, house.now)
    assert house.moves() == []
    assert set(house.step()) == {runs, later}


def test_nothing_leaves_while_a_step_that_uses_it_is_under_way() -> None:
    house = House(max_active_adapters=1, adapter_cycle_seconds=0.0)
    number = house.ask(A, output=2)
    house.carry_out()
    plan = house.core.plan(0.0)
    house.core.cancel(number, 0.0)
    house.ask(B)
    assert house.moves() == []
    house.core.complete(plan.order, Answer(1, 0.01, {number: AnswerRow((9,), (0.0,))}, {}), {}, 0.0)  # type: ignore[union-attr]
    assert house.moves() == [Remove(A)]


def test_what_stays_never_leaves() -> None:
    house, stays = House(max_active_adapters=2, adapter_cycle_seconds=0.0), adapter(9, stays=True)
    house.core.available(stays, 0.0)
    house.serve(A)
    house.ask(B)
    assert house.carry_out() == [Remove(A)]
    assert house.carry_out() == [Bring(B)]


def test_what_can_never_fit_fails_at_once() -> None:
    house = House(max_active_adapters=1)
    events = house.core.submit(Request("x", (1,), 1, adapter=adapter(1, 1001)), 0.0)
    assert isinstance(events[1], Failed)
    assert "takes 1,001 bytes of memory, and there are 1,000" in events[1].reason
    house.core.available(adapter(9, stays=True), 0.0)
    events = house.core.submit(Request("x", (1,), 1, adapter=A), 0.0)
    assert "--max-active-adapters 1" in events[1].reason  # type: ignore[union-attr]


def test_who_needs_what_cannot_be_loaded_fails_and_the_next_tries_again() -> None:
    house = House()
    number = house.ask(A)
    house.moves()
    assert house.core.unavailable(A, "it is broken", 0.0) == [Failed(number, "it is broken")]
    house.ask(A)
    assert house.moves() == [Bring(A)]


def test_what_is_wanted_for_nobody_comes_and_is_the_first_to_leave() -> None:
    house = House(max_active_adapters=1)
    house.core.want(A, 0.0)
    assert house.carry_out() == [Bring(A)]
    house.core.want(A, 0.0)
    assert house.moves() == []
    house.ask(B)
    assert house.carry_out() == [Remove(A)]


def test_what_is_wanted_comes_though_a_request_for_it_left() -> None:
    house = House()
    house.core.want(A, 0.0)
    house.core.cancel(house.ask(A), 0.0)
    assert house.carry_out() == [Bring(A)]


def test_what_is_wanted_while_it_leaves_comes_again() -> None:
    house = House()
    house.serve(A)
    house.core.drop(A, 0.0)
    assert house.moves() == [Remove(A)]
    house.core.want(A, 0.0)
    assert house.moves() == []
    house.core.removed(A, 0.0)
    assert house.carry_out() == [Bring(A)]


def test_what_is_wanted_comes_again_after_a_loss_and_not_after_it_failed() -> None:
    house = House()
    house.core.want(A, 0.0)
    house.moves()
    house.core.shards_lost(0.0, Loss.DEATH)
    house.core.shards_ready(FACTS, 2, 0.0)
    assert house.moves() == [Bring(A)]
    house.core.unavailable(A, "it is broken", 0.0)
    assert house.moves() == []


def test_what_is_dropped_leaves_when_nobody_in_the_house_needs_it() -> None:
    house = House(max_batch_size=1)
    runs, waits = house.ask(A, output=2), house.ask(A)
    house.carry_out()
    house.step()
    house.core.drop(A, 0.0)
    assert house.moves() == []
    assert house.step() == (runs,)
    assert house.moves() == []
    assert house.step() == (waits,)
    assert house.carry_out() == [Remove(A)]
    assert house.core.adapters == {}


def test_what_is_dropped_on_its_way_leaves_as_soon_as_it_came() -> None:
    house = House()
    house.core.want(A, 0.0)
    assert house.moves() == [Bring(A)]
    house.core.drop(A, 0.0)
    house.core.available(A, 0.0)
    assert house.moves() == [Remove(A)]


def test_what_is_dropped_before_it_is_on_its_way_does_not_come() -> None:
    house = House()
    house.core.want(A, 0.0)
    house.core.drop(A, 0.0)
    assert house.moves() == []


def test_to_drop_what_is_not_there_or_stays_does_nothing() -> None:
    house, stays = House(), adapter(9, stays=True)
    house.core.available(stays, 0.0)
    for resource in (A, stays):
        house.core.drop(resource, 0.0)
    assert house.moves() == []
    assert {resource: standing.state for resource, standing in house.core.adapters.items()} == {stays: "here"}
    house.serve(A)
    assert house.moves() == []


def test_who_comes_for_what_is_dropped_keeps_it() -> None:
    house = House()
    house.ask(A, output=2)
    house.carry_out()
    house.step()
    house.core.drop(A, 0.0)
    house.ask(A)
    for _ in range(3):
        house.step()
    assert house.moves() == []


def test_what_is_dropped_is_not_opened_again_for_want_of_others() -> None:
    house = House(max_active_adapters=1, adapter_cycle_seconds=0.0)
    number = house.ask(A, output=2)
    house.carry_out()
    plan = house.core.plan(0.0)
    house.core.cancel(number, 0.0)
    house.core.drop(A, 0.0)
    waits = house.ask(B)
    assert house.moves() == []
    house.core.cancel(waits, 0.0)
    house.ask(None, grammar=Resource("grammar", 1))
    assert house.moves() == [Bring(Resource("grammar", 1))]
    house.core.complete(plan.order, Answer(1, 0.01, {number: AnswerRow((9,), (0.0,))}, {}), {}, 0.0)  # type: ignore[union-attr]
    assert house.moves() == [Remove(A)]


def test_how_things_are_with_adapters_is_told() -> None:
    house = House(max_active_adapters=2, adapter_cycle_seconds=0.0)
    told = lambda: {r.id: (standing.state, standing.num_users) for r, standing in house.core.adapters.items()}  # noqa: E731
    assert told() == {}
    house.ask(A, output=9, grammar=None)
    house.ask(A, output=9)
    house.moves()
    assert told() == {1: ("coming", 2)}
    house.core.available(A, 0.0)
    house.step()
    house.serve(B)
    house.ask(C)
    house.ask(adapter(4))
    house.moves()
    assert told() == {1: ("leaving", 2), 2: ("leaving", 0), 3: ("absent", 1), 4: ("absent", 1)}


def test_a_misfit_is_told_before_it_is_wanted() -> None:
    house = House()
    assert "takes 1,001 bytes" in house.core.misfit(adapter(1, 1001))
    assert house.core.misfit(A) == ""


def test_after_a_death_everything_comes_again_and_after_a_reset_what_was_on_its_way() -> None:
    house = House()
    house.ask(A, output=5)
    house.carry_out()
    house.step()
    house.ask(B)
    house.moves()
    for loss, again in ((Loss.DEFECT, [Bring(B)]), (Loss.DEATH, [Bring(B), Bring(A)])):
        house.core.shards_lost(0.0, loss)
        house.core.shards_ready(FACTS, 2, 0.0)
        assert house.moves() == again


def test_the_tenant_that_got_least_is_served_first() -> None:
    house = House(max_active_adapters=1)
    house.ask(A, output=50, tenant=Tenant("busy"))
    house.carry_out()
    house.step()
    house.ask(B, tenant=Tenant("busy"))
    house.ask(C, tenant=Tenant("quiet"))
    for _ in range(50):
        house.step()
    house.now = 9.0
    assert house.carry_out() == [Remove(A)]
    assert house.carry_out() == [Bring(C)]


def test_grammars_have_room_and_some_that_nobody_needs_stay() -> None:
    house = House(max_active_adapters=1)
    for number in range(1, MOST_IDLE_GRAMMARS + 3):
        house.ask(None, grammar=Resource("grammar", number))
        house.carry_out()
        house.step()
        house.step()
    assert [move.resource.id for move in house.moves()] == [2]


def crowded_world(seed: int, requests: int, adapters: int, places: int, cycle: float = CYCLE) -> World:
    """Return a world of requests for random adapters, most of them for the first few."""
    rng = random.Random(seed)
    config = RouterConfig(max_batch_prefill_tokens=512, max_batch_size=64, max_total_tokens=200,
                          max_active_adapters=places, adapter_cycle_time_s=cycle, max_concurrent_requests=requests)
    model = SimulatedConfig(num_blocks=1000, max_positions=256, adapter_bytes=100 * places)
    world = World(config, model, seed)
    world.move_seconds = MOVE
    now = 0.0
    for number in range(requests):
        now += rng.expovariate(150.0)
        wanted = Resource("adapter", 1 + int(adapters * rng.random() ** 3), takes=rng.randint(50, 100))
        request = Request(str(number), tuple(rng.randrange(255) for _ in range(rng.randint(1, 40))),
                          rng.randint(1, 12), key=rng.getrandbits(64), end_tokens=frozenset({256}),
                          adapter=wanted if rng.random() < 0.95 else None, tenant=ANYONE)
        world.add(Client(request, now, now + rng.random() if rng.random() < 0.05 else None))
    return world


def longest_turn(adapters: int, places: int) -> float:
    """Return a bound in seconds: for each adapter ahead, its cycle, its last requests, and the two moves."""
    return adapters / places * (CYCLE + 1.0 + 2 * MOVE)


def check_crowd(world: World, adapters: int, places: int) -> None:
    """Run to the end and check that there are never more adapters than slots, that every request ends, and that none
    waits longer than its turn. The world checks that each token comes from the request's adapter."""
    while not world.is_at_rest:
        world.step()
        assert len(world.worker.ledger.loaded[pb.KIND_ADAPTER]) <= places
    world.check_idle()
    assert {client.end for client in world.everyone} <= {"length", "eos_token", "left"}
    waited = max(story.seconds(world.now).get(Cause.ADAPTER, 0.0) for story in world.stories)
    assert waited < longest_turn(adapters, places)


@pytest.mark.slow
def test_a_crowd_with_more_adapters_than_places() -> None:
    world = crowded_world(1, requests=1500, adapters=200, places=16)
    check_crowd(world, 200, 16)
    world.check_replay()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_large_crowd_with_more_adapters_than_places() -> None:
    check_crowd(crowded_world(2, requests=20_000, adapters=200, places=16), 200, 16)


@pytest.mark.slow
def test_a_crowd_in_which_adapters_are_wanted_and_dropped_all_the_time() -> None:
    """Requests are not affected, and a replay makes the same decisions."""
    world, rng = crowded_world(3, requests=600, adapters=60, places=16), random.Random(3)

    def call(name: str) -> None:
        if world.core_is_ready:
            world._call(name, Resource("adapter", rng.randint(1, 60), takes=100), world.now)
            world._pump()

    for turn in range(400):
        world.at(turn / 100, partial(call, rng.choice(("want", "drop", "drop"))))
    check_crowd(world, 60, 16)
    world.check_replay()
