"""Tests of router/scheduler/loadable_resource_cache.py through the core: loading and eviction of adapters and
grammars."""

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from support.scheduling.simulated_world import SimulatedClient, SimulatedWorld, add_block_hashes

from router.config import RouterConfig
from router.model_info import ModelInfo
from router.request import DEFAULT_TENANT, LoadableResource, Request, Tenant
from router.scheduler.events import SequenceFailed
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.loadable_resource_cache import MAX_IDLE_GRAMMARS, UNUSED_GRACE_SECONDS
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import RequestPhase
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import LoadResource, StepResult, StepResultRow, UnloadResource
from shard.config import SimulatedConfig
from shard.pb import shard_pb2 as pb

MODEL_INFO = ModelInfo("simulated", "cpu", "float32", 512, 4096, 16, 64, adapter_bytes=1000)


def make_adapter(number: int, max_bytes: int = 100, *, is_pinned: bool = False) -> LoadableResource:
    return LoadableResource("adapter", number, max_bytes, is_pinned)


CYCLE_SECONDS, MOVE_SECONDS = 0.5, 0.02  # seconds
ADAPTER_A, ADAPTER_B, ADAPTER_C = make_adapter(1), make_adapter(2), make_adapter(3)


class SchedulerWithShards:
    """The core, with shards that carry out its loads and unloads when `execute_commands` is called."""

    def __init__(self, **settings: Any) -> None:
        self.core = Scheduler(replace(SchedulerSettings(look_ahead=1), **settings), MODEL_INFO)
        self.core.on_shards_ready(MODEL_INFO, 1, 0.0)
        self.now = 0.0

    def submit(self, adapter: LoadableResource | None, output: int = 1, **request_fields: Any) -> int:
        request = add_block_hashes(Request(str(self.now), (7,) * 20, output, adapter=adapter, **request_fields), 16)
        event = self.core.submit(request, self.now)[0]
        return event.sequence_id  # type: ignore[union-attr]

    def take_commands(self) -> list[LoadResource | UnloadResource]:
        self.core.on_timer(self.now)
        return self.core.take_resource_commands(self.now)

    def execute_commands(self) -> list[LoadResource | UnloadResource]:
        moves = self.take_commands()
        for move in moves:
            done = self.core.on_resource_loaded if isinstance(move, LoadResource) else self.core.on_resource_unloaded
            done(move.resource, self.now)
        return moves

    def run_step(self) -> tuple[int, ...]:
        """Run one step and return the sequences in it."""
        plan = self.core.plan(self.now)
        if plan is None:
            return ()
        rows = {number: StepResultRow((9,), (0.0,)) for number in plan.output_ids}
        self.core.complete_step(plan.last_message_number, StepResult(plan.epoch, 0.01, rows, {}), {}, self.now)
        return plan.member_ids

    def run_request(self, adapter: LoadableResource) -> None:
        self.submit(adapter)
        self.execute_commands()
        self.run_step()
        self.run_step()


def test_resource_is_loaded_once_for_all_waiting_requests() -> None:
    setup = SchedulerWithShards()
    setup.submit(ADAPTER_A)
    setup.submit(ADAPTER_A)
    setup.submit(ADAPTER_B)
    assert setup.take_commands() == [LoadResource(ADAPTER_A), LoadResource(ADAPTER_B)]
    assert setup.take_commands() == []


def test_request_waits_for_its_adapter_while_others_pass() -> None:
    setup = SchedulerWithShards()
    waits, passes = setup.submit(ADAPTER_A), setup.submit(None)
    assert setup.run_step() == (passes,)
    assert setup.core.get_request_timeline(waits).phase is RequestPhase.ADAPTER
    setup.execute_commands()
    assert setup.run_step() == (waits,)


def test_request_with_adapter_and_grammar_waits_for_both() -> None:
    setup, grammar = SchedulerWithShards(), LoadableResource("grammar", 1)
    number = setup.submit(ADAPTER_A, grammar=grammar)
    assert setup.take_commands() == [LoadResource(ADAPTER_A)]
    setup.core.on_resource_loaded(ADAPTER_A, 0.0)
    assert setup.take_commands() == [LoadResource(grammar)]
    assert setup.run_step() == ()
    setup.core.on_resource_loaded(grammar, 0.0)
    assert setup.run_step() == (number,)


def test_least_recently_used_adapter_is_unloaded_only_on_demand() -> None:
    setup = SchedulerWithShards(max_active_adapters=2)
    setup.run_request(ADAPTER_A)
    setup.run_request(ADAPTER_B)
    setup.run_request(ADAPTER_A)
    assert setup.take_commands() == []
    setup.submit(ADAPTER_C)
    assert setup.execute_commands() == [UnloadResource(ADAPTER_B)]
    assert setup.execute_commands() == [LoadResource(ADAPTER_C)]


def test_enough_adapters_are_unloaded_for_the_bytes_needed() -> None:
    setup = SchedulerWithShards()
    for number in range(1, 11):
        setup.run_request(make_adapter(number))
    setup.submit(make_adapter(11, 250))
    assert setup.execute_commands() == [UnloadResource(make_adapter(number)) for number in (1, 2, 3)]
    assert setup.execute_commands() == [LoadResource(make_adapter(11))]


def test_adapter_in_use_stays_for_its_cycle_and_until_its_requests_finish() -> None:
    setup = SchedulerWithShards(max_active_adapters=1, adapter_cycle_seconds=2.0)
    runs = setup.submit(ADAPTER_A, output=3)
    setup.execute_commands()
    setup.run_step()
    waits = setup.submit(ADAPTER_B)
    assert setup.take_commands() == []
    assert setup.core.wake_at == 2.0
    setup.now = 2.0
    later = setup.submit(ADAPTER_A)
    assert setup.take_commands() == []  # a running request uses it
    assert setup.core.get_request_timeline(later).phase is RequestPhase.ADAPTER
    assert setup.run_step() == setup.run_step() == (runs,)
    assert setup.execute_commands() == [UnloadResource(ADAPTER_A)]
    assert setup.execute_commands() == [LoadResource(ADAPTER_B)]
    assert setup.run_step() == (waits,)
    setup.run_step()
    assert setup.execute_commands() == [UnloadResource(ADAPTER_B)]
    setup.execute_commands()
    assert setup.run_step() == (later,)


def test_adapter_is_not_unloaded_before_a_request_started_with_it() -> None:
    """Regression: with a cycle time of 0 the adapters replaced each other, and no request ever started."""
    setup = SchedulerWithShards(max_active_adapters=1, adapter_cycle_seconds=0.0)
    setup.submit(ADAPTER_A)
    setup.submit(ADAPTER_B)
    setup.execute_commands()
    assert setup.take_commands() == []
    setup.run_step()
    setup.run_step()
    assert setup.execute_commands() == [UnloadResource(ADAPTER_A)]


def test_adapter_of_a_suspended_request_is_unloaded() -> None:
    setup = SchedulerWithShards(max_active_adapters=1, adapter_cycle_seconds=1.0)
    held = setup.submit(ADAPTER_A)
    setup.execute_commands()
    setup.core.suspend(held, 0.0)
    setup.submit(ADAPTER_B)
    setup.take_commands()
    setup.now = setup.core.wake_at or 0.0
    assert setup.now == 1.0 + UNUSED_GRACE_SECONDS
    assert setup.take_commands() == [UnloadResource(ADAPTER_A)]


def test_adapter_of_a_suspended_request_is_loaded_once_its_client_reads() -> None:
    setup = SchedulerWithShards()
    held = setup.submit(ADAPTER_A)
    setup.core.suspend(held, 0.0)
    assert setup.take_commands() == []
    setup.core.resume(held, 0.0)
    assert setup.core.get_request_timeline(held).phase is RequestPhase.ADAPTER
    setup.execute_commands()
    assert setup.run_step() == (held,)


def test_draining_stops_when_nobody_waits_for_the_slot_any_more() -> None:
    setup = SchedulerWithShards(max_active_adapters=1, adapter_cycle_seconds=0.0)
    runs = setup.submit(ADAPTER_A, output=9)
    setup.execute_commands()
    setup.run_step()
    waits, later = setup.submit(ADAPTER_B), setup.submit(ADAPTER_A)
    setup.take_commands()
    setup.core.cancel(waits, setup.now)
    assert setup.take_commands() == []
    assert set(setup.run_step()) == {runs, later}


def test_adapter_is_not_unloaded_during_a_step_that_uses_it() -> None:
    setup = SchedulerWithShards(max_active_adapters=1, adapter_cycle_seconds=0.0)
    number = setup.submit(ADAPTER_A, output=2)
    setup.execute_commands()
    plan = setup.core.plan(0.0)
    setup.core.cancel(number, 0.0)
    setup.submit(ADAPTER_B)
    assert setup.take_commands() == []
    setup.core.complete_step(plan.last_message_number, StepResult(1, 0.01, {number: StepResultRow((9,), (0.0,))}, {}),
                             {}, 0.0)  # type: ignore[union-attr]
    assert setup.take_commands() == [UnloadResource(ADAPTER_A)]


def test_pinned_adapter_is_never_unloaded() -> None:
    setup, stays = SchedulerWithShards(max_active_adapters=2,
                                       adapter_cycle_seconds=0.0), make_adapter(9, is_pinned=True)
    setup.core.on_resource_loaded(stays, 0.0)
    setup.run_request(ADAPTER_A)
    setup.submit(ADAPTER_B)
    assert setup.execute_commands() == [UnloadResource(ADAPTER_A)]
    assert setup.execute_commands() == [LoadResource(ADAPTER_B)]


def test_adapter_that_never_fits_fails_at_once() -> None:
    setup = SchedulerWithShards(max_active_adapters=1)
    events = setup.core.submit(Request("x", (1,), 1, adapter=make_adapter(1, 1001)), 0.0)
    assert isinstance(events[1], SequenceFailed)
    assert "takes 1,001 bytes of memory, and there are 1,000" in events[1].reason
    setup.core.on_resource_loaded(make_adapter(9, is_pinned=True), 0.0)
    events = setup.core.submit(Request("x", (1,), 1, adapter=ADAPTER_A), 0.0)
    assert "--max-active-adapters 1" in events[1].reason  # type: ignore[union-attr]


def test_load_failure_fails_its_requests_and_the_next_request_retries() -> None:
    setup = SchedulerWithShards()
    number = setup.submit(ADAPTER_A)
    setup.take_commands()
    assert setup.core.on_resource_failed(ADAPTER_A, "it is broken", 0.0) == [SequenceFailed(number, "it is broken")]
    setup.submit(ADAPTER_A)
    assert setup.take_commands() == [LoadResource(ADAPTER_A)]


def test_adapter_loaded_without_a_request_is_unloaded_first() -> None:
    setup = SchedulerWithShards(max_active_adapters=1)
    setup.core.request_resource_load(ADAPTER_A, 0.0)
    assert setup.execute_commands() == [LoadResource(ADAPTER_A)]
    setup.core.request_resource_load(ADAPTER_A, 0.0)
    assert setup.take_commands() == []
    setup.submit(ADAPTER_B)
    assert setup.execute_commands() == [UnloadResource(ADAPTER_A)]


def test_requested_load_continues_after_its_request_was_cancelled() -> None:
    setup = SchedulerWithShards()
    setup.core.request_resource_load(ADAPTER_A, 0.0)
    setup.core.cancel(setup.submit(ADAPTER_A), 0.0)
    assert setup.execute_commands() == [LoadResource(ADAPTER_A)]


def test_adapter_requested_while_unloading_is_loaded_again() -> None:
    setup = SchedulerWithShards()
    setup.run_request(ADAPTER_A)
    setup.core.request_resource_unload(ADAPTER_A, 0.0)
    assert setup.take_commands() == [UnloadResource(ADAPTER_A)]
    setup.core.request_resource_load(ADAPTER_A, 0.0)
    assert setup.take_commands() == []
    setup.core.on_resource_unloaded(ADAPTER_A, 0.0)
    assert setup.execute_commands() == [LoadResource(ADAPTER_A)]


def test_requested_load_is_repeated_after_a_shard_loss_but_not_after_a_failure() -> None:
    setup = SchedulerWithShards()
    setup.core.request_resource_load(ADAPTER_A, 0.0)
    setup.take_commands()
    setup.core.on_shards_lost(ShardLossReason.DEATH, 0.0)
    setup.core.on_shards_ready(MODEL_INFO, 2, 0.0)
    assert setup.take_commands() == [LoadResource(ADAPTER_A)]
    setup.core.on_resource_failed(ADAPTER_A, "it is broken", 0.0)
    assert setup.take_commands() == []


def test_dropped_adapter_is_unloaded_when_no_request_needs_it() -> None:
    setup = SchedulerWithShards(max_batch_size=1)
    runs, waits = setup.submit(ADAPTER_A, output=2), setup.submit(ADAPTER_A)
    setup.execute_commands()
    setup.run_step()
    setup.core.request_resource_unload(ADAPTER_A, 0.0)
    assert setup.take_commands() == []
    assert setup.run_step() == (runs,)
    assert setup.take_commands() == []
    assert setup.run_step() == (waits,)
    assert setup.execute_commands() == [UnloadResource(ADAPTER_A)]
    assert setup.core.resource_cache.adapter_states == {}


def test_adapter_dropped_while_loading_is_unloaded_once_it_is_loaded() -> None:
    setup = SchedulerWithShards()
    setup.core.request_resource_load(ADAPTER_A, 0.0)
    assert setup.take_commands() == [LoadResource(ADAPTER_A)]
    setup.core.request_resource_unload(ADAPTER_A, 0.0)
    setup.core.on_resource_loaded(ADAPTER_A, 0.0)
    assert setup.take_commands() == [UnloadResource(ADAPTER_A)]


def test_adapter_dropped_before_loading_is_not_loaded() -> None:
    setup = SchedulerWithShards()
    setup.core.request_resource_load(ADAPTER_A, 0.0)
    setup.core.request_resource_unload(ADAPTER_A, 0.0)
    assert setup.take_commands() == []


def test_dropping_an_absent_or_pinned_adapter_has_no_effect() -> None:
    setup, stays = SchedulerWithShards(), make_adapter(9, is_pinned=True)
    setup.core.on_resource_loaded(stays, 0.0)
    for resource in (ADAPTER_A, stays):
        setup.core.request_resource_unload(resource, 0.0)
    assert setup.take_commands() == []
    states = setup.core.resource_cache.adapter_states
    assert {resource: standing.state for resource, standing in states.items()} == {stays: "loaded"}
    setup.run_request(ADAPTER_A)
    assert setup.take_commands() == []


def test_new_request_keeps_a_dropped_adapter() -> None:
    setup = SchedulerWithShards()
    setup.submit(ADAPTER_A, output=2)
    setup.execute_commands()
    setup.run_step()
    setup.core.request_resource_unload(ADAPTER_A, 0.0)
    setup.submit(ADAPTER_A)
    for _ in range(3):
        setup.run_step()
    assert setup.take_commands() == []


def test_dropped_adapter_does_not_stop_draining() -> None:
    setup = SchedulerWithShards(max_active_adapters=1, adapter_cycle_seconds=0.0)
    number = setup.submit(ADAPTER_A, output=2)
    setup.execute_commands()
    plan = setup.core.plan(0.0)
    setup.core.cancel(number, 0.0)
    setup.core.request_resource_unload(ADAPTER_A, 0.0)
    waits = setup.submit(ADAPTER_B)
    assert setup.take_commands() == []
    setup.core.cancel(waits, 0.0)
    setup.submit(None, grammar=LoadableResource("grammar", 1))
    assert setup.take_commands() == [LoadResource(LoadableResource("grammar", 1))]
    setup.core.complete_step(plan.last_message_number, StepResult(1, 0.01, {number: StepResultRow((9,), (0.0,))}, {}),
                             {}, 0.0)  # type: ignore[union-attr]
    assert setup.take_commands() == [UnloadResource(ADAPTER_A)]


def test_adapter_states_report_state_and_number_of_users() -> None:
    setup = SchedulerWithShards(max_active_adapters=2, adapter_cycle_seconds=0.0)
    get_states = lambda: {r.id: (standing.state, standing.num_users)  # noqa: E731
                          for r, standing in setup.core.resource_cache.adapter_states.items()}
    assert get_states() == {}
    setup.submit(ADAPTER_A, output=9, grammar=None)
    setup.submit(ADAPTER_A, output=9)
    setup.take_commands()
    assert get_states() == {1: ("loading", 2)}
    setup.core.on_resource_loaded(ADAPTER_A, 0.0)
    setup.run_step()
    setup.run_request(ADAPTER_B)
    setup.submit(ADAPTER_C)
    setup.submit(make_adapter(4))
    setup.take_commands()
    assert get_states() == {1: ("unloading", 2), 2: ("unloading", 0), 3: ("unloaded", 1), 4: ("unloaded", 1)}


def test_why_never_fits_is_known_before_loading() -> None:
    setup = SchedulerWithShards()
    assert "takes 1,001 bytes" in setup.core.resource_cache.why_never_fits(make_adapter(1, 1001))
    assert setup.core.resource_cache.why_never_fits(ADAPTER_A) == ""


def test_shard_death_reloads_everything_and_a_reset_only_pending_loads() -> None:
    setup = SchedulerWithShards()
    setup.submit(ADAPTER_A, output=5)
    setup.execute_commands()
    setup.run_step()
    setup.submit(ADAPTER_B)
    setup.take_commands()
    for loss, again in ((ShardLossReason.DEFECT, [LoadResource(ADAPTER_B)]),
                        (ShardLossReason.DEATH, [LoadResource(ADAPTER_B), LoadResource(ADAPTER_A)])):
        setup.core.on_shards_lost(loss, 0.0)
        setup.core.on_shards_ready(MODEL_INFO, 2, 0.0)
        assert setup.take_commands() == again


def test_adapter_of_the_least_served_tenant_is_loaded_first() -> None:
    setup = SchedulerWithShards(max_active_adapters=1)
    setup.submit(ADAPTER_A, output=50, tenant=Tenant("busy"))
    setup.execute_commands()
    setup.run_step()
    setup.submit(ADAPTER_B, tenant=Tenant("busy"))
    setup.submit(ADAPTER_C, tenant=Tenant("quiet"))
    for _ in range(50):
        setup.run_step()
    setup.now = 9.0
    assert setup.execute_commands() == [UnloadResource(ADAPTER_A)]
    assert setup.execute_commands() == [LoadResource(ADAPTER_C)]


def test_idle_grammars_are_kept_up_to_a_limit() -> None:
    setup = SchedulerWithShards(max_active_adapters=1)
    for number in range(1, MAX_IDLE_GRAMMARS + 3):
        setup.submit(None, grammar=LoadableResource("grammar", number))
        setup.execute_commands()
        setup.run_step()
        setup.run_step()
    assert [move.resource.id for move in setup.take_commands()] == [2]


def make_adapter_world(seed: int, num_requests: int, num_adapters: int, num_slots: int,
                       cycle_seconds: float = CYCLE_SECONDS) -> SimulatedWorld:
    """Return a world of requests for random adapters, most of them for the first few."""
    rng = random.Random(seed)
    config = RouterConfig(max_batch_prefill_tokens=512, max_batch_size=64, max_total_tokens=200,
                          max_active_adapters=num_slots, adapter_cycle_time_s=cycle_seconds,
                          max_concurrent_requests=num_requests)
    model = SimulatedConfig(num_blocks=1000, max_positions=256, adapter_bytes=100 * num_slots)
    world = SimulatedWorld(config, model, seed)
    world.move_seconds = MOVE_SECONDS
    now = 0.0
    for number in range(num_requests):
        now += rng.expovariate(150.0)
        adapter = LoadableResource("adapter", 1 + int(num_adapters * rng.random() ** 3), max_bytes=rng.randint(50, 100))
        request = Request(str(number), tuple(rng.randrange(255) for _ in range(rng.randint(1, 40))),
                          rng.randint(1, 12), sampling_key=rng.getrandbits(64), end_tokens=frozenset({256}),
                          adapter=adapter if rng.random() < 0.95 else None, tenant=DEFAULT_TENANT)
        world.add_client(SimulatedClient(request, now, now + rng.random() if rng.random() < 0.05 else None))
    return world


def max_adapter_wait(num_adapters: int, num_slots: int) -> float:
    """Return a bound in seconds: for each adapter ahead, its cycle, its last requests, and the two moves."""
    return num_adapters / num_slots * (CYCLE_SECONDS + 1.0 + 2 * MOVE_SECONDS)


def check_adapter_world(world: SimulatedWorld, num_adapters: int, num_slots: int) -> None:
    """Run to the end and check that there are never more adapters than slots, that every request ends, and that none
    waits longer than its turn. The world checks that each token comes from the request's adapter."""
    while not world.has_no_events:
        world.run_next_event()
        assert len(world.worker.shard_state.loaded_ids[pb.KIND_ADAPTER]) <= num_slots
    world.check_idle()
    assert {client.end_reason for client in world.all_clients} <= {"length", "eos_token", "left"}
    waited = max(timeline.seconds_by_phase(world.now).get(RequestPhase.ADAPTER, 0.0) for timeline in world.timelines)
    assert waited < max_adapter_wait(num_adapters, num_slots)


@pytest.mark.slow
def test_requests_for_more_adapters_than_slots_all_finish() -> None:
    world = make_adapter_world(1, num_requests=500, num_adapters=200, num_slots=16)
    check_adapter_world(world, 200, 16)
    world.check_replay()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_many_requests_for_more_adapters_than_slots_all_finish() -> None:
    check_adapter_world(make_adapter_world(2, num_requests=20_000, num_adapters=200, num_slots=16), 200, 16)


@pytest.mark.slow
def test_frequent_loads_and_unloads_do_not_affect_requests() -> None:
    """Requests are not affected, and a replay makes the same decisions."""
    world, rng = make_adapter_world(3, num_requests=600, num_adapters=60, num_slots=16), random.Random(3)

    def call_scheduler(method_name: str) -> None:
        if world.is_scheduler_ready:
            world._call_scheduler(method_name, LoadableResource("adapter", rng.randint(1, 60), max_bytes=100),
                                  world.now)
            world._send_plans_and_moves()

    method_names = ("request_resource_load", "request_resource_unload", "request_resource_unload")
    for turn in range(400):
        world.schedule_at(turn / 100, partial(call_scheduler, rng.choice(method_names)))
    check_adapter_world(world, 60, 16)
    world.check_replay()
