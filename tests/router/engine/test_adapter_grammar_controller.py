"""Tests of router/engine/adapter_grammar_controller.py."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.metrics_page import parse_metrics

from router.engine.adapter_grammar_controller import UNLOADED_WHILE_WAITING, AdapterGrammarController
from router.errors import NotReady
from router.model_info import ModelInfo
from router.request import LoadableResource, Request
from router.scheduler.events import RequestAccepted, SchedulerEvent, SequenceFailed
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.loadable_resource_cache import AdapterStatus
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings
from router.shards.handshake import HandshakeResult
from router.telemetry.server_metrics import ServerMetrics
from router.text.prompt_encoder import TokenLimits
from shard.pb import shard_pb2 as pb

MODEL_INFO = ModelInfo("loom", "cpu", "float32", vocabulary_size=512, max_positions=64, block_size=16, num_blocks=4,
                       adapters=True, adapter_bytes=1000)
TOO_LARGE = "the adapter takes 1,001 bytes of memory, and there are 1,000"


class ScriptedShards:
    """Double of the shards: loads fail with `failure_reason`, if it is not empty."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []  # verb and id
        self.failure_reason = ""

    async def load_or_unload(self, request: pb.LoadRequest | pb.UnloadRequest) -> str:
        is_load = isinstance(request, pb.LoadRequest)
        self.calls.append(("load" if is_load else "unload", request.id))
        return self.failure_reason if is_load else ""


class ControllerSetup:
    """Controller of a scheduler and scripted shards, with everything that it tells the engine."""

    def __init__(self, *, has_adapter_metrics: bool) -> None:
        self.shards = ScriptedShards()
        self.event_lists: list[list[SchedulerEvent]] = []
        self.num_wakes = 0
        self.controller = AdapterGrammarController(self.shards, self.event_lists.append, self._count_wake)
        self.scheduler = Scheduler(SchedulerSettings(), MODEL_INFO)
        self.metrics = ServerMetrics(self.scheduler, TokenLimits(63, 64), 1, with_adapters=has_adapter_metrics)
        self.controller.attach_scheduler(self.scheduler, self.metrics)

    def _count_wake(self) -> None:
        self.num_wakes += 1

    async def connect_shards(self, epoch: int = 1, model_info: ModelInfo = MODEL_INFO) -> None:
        handshake = HandshakeResult(model_info, epoch, frozenset(), frozenset())
        await self.controller.loader.restore_after_handshake(handshake)
        self.scheduler.on_shards_ready(model_info, epoch, 0.0)

    async def replace_shards(self, loss_reason: ShardLossReason, epoch: int,
                             model_info: ModelInfo = MODEL_INFO) -> None:
        """Lose the shards and connect to new ones, which have nothing loaded."""
        self.scheduler.on_shards_lost(loss_reason, 0.0)
        self.controller.loader.end_epoch(resources_lost=loss_reason is ShardLossReason.DEATH)
        await self.connect_shards(epoch, model_info)
        self.controller.settle_waiters_without_load()

    def make_adapter(self, source: str = "a", max_bytes: int = 100) -> LoadableResource:
        return self.controller.loader.get_or_register("adapter", source, max_bytes)

    def submit(self, resource: LoadableResource) -> int:
        """Submit a request that needs the adapter and return its sequence id."""
        [event] = self.scheduler.submit(Request("r", (1, 2), 9, adapter=resource), 0.0)
        assert isinstance(event, RequestAccepted)
        return event.sequence_id

    async def start_loading(self, *resources: LoadableResource) -> list["asyncio.Task[str]"]:
        """Start a call of `load` for each resource and let all calls wait."""
        tasks = [asyncio.create_task(self.controller.load(resource)) for resource in resources]
        await asyncio.sleep(0)
        return tasks

    async def run_commands(self) -> None:
        """Send the loads and unloads that the scheduler decides on, and wait for the shards' results."""
        self.scheduler.on_timer(0.0)
        self.controller.execute_loads_and_unloads()
        while tasks := self.controller.loader._tasks:
            await asyncio.wait(tasks)

    async def load(self, resource: LoadableResource) -> str:
        [task] = await self.start_loading(resource)
        await self.run_commands()
        return await task

    async def unload(self, resource: LoadableResource) -> None:
        self.controller.request_resource_unload(resource)
        await self.run_commands()

    def get_samples(self) -> dict[str, float]:
        return parse_metrics(self.metrics.render(is_ready=True, has_shards=True))


def run_scenario(scenario: Callable[[ControllerSetup], Awaitable[None]], *, has_adapter_metrics: bool = True) -> None:
    async def main() -> None:
        setup = ControllerSetup(has_adapter_metrics=has_adapter_metrics)
        await setup.connect_shards()
        await asyncio.wait_for(scenario(setup), 5.0)
        await setup.controller.loader.close()
    asyncio.run(main())


# -- loading


def test_all_callers_of_an_adapter_share_one_load() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        tasks = await setup.start_loading(*[setup.make_adapter()] * 3)
        await setup.run_commands()
        assert [await task for task in tasks] == ["", "", ""]
        assert setup.shards.calls == [("load", 1)]
    run_scenario(scenario)


def test_caller_that_leaves_does_not_affect_the_others() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        leaves, stays = await setup.start_loading(*[setup.make_adapter()] * 2)
        leaves.cancel()
        await asyncio.wait([leaves])
        await setup.run_commands()
        assert await stays == ""
    run_scenario(scenario)


def test_available_adapter_is_not_loaded_again() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        adapter = setup.make_adapter()
        await setup.load(adapter)
        assert await setup.controller.load(adapter) == ""
        await setup.run_commands()
        assert setup.shards.calls == [("load", 1)]
    run_scenario(scenario)


def test_adapter_that_never_fits_is_refused_at_once_and_never_loaded() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        assert (await setup.controller.load(setup.make_adapter(max_bytes=1001))).startswith(TOO_LARGE)
        await setup.run_commands()
        assert (setup.shards.calls, setup.num_wakes) == ([], 0)
    run_scenario(scenario)


def test_failure_of_a_load_does_not_show_where_adapters_are_kept() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        setup.shards.failure_reason = "/srv/a has its weights in /srv/a/adapter_model.bin, not in /srv/ab"
        assert await setup.load(setup.make_adapter("/srv/a")) == (
            "its folder has its weights in adapter_model.bin, not in /srv/ab")
    run_scenario(scenario)


def test_failure_of_a_load_reaches_its_callers_and_no_others() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        setup.shards.failure_reason = "it is broken"
        assert await setup.load(setup.make_adapter("broken")) == "it is broken"
        setup.shards.failure_reason = ""
        assert await setup.load(setup.make_adapter("whole")) == ""
    run_scenario(scenario)


def test_failure_of_a_load_fails_the_requests_that_need_it() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        setup.shards.failure_reason = "it is broken"
        sequence_id = setup.submit(adapter := setup.make_adapter())
        assert await setup.load(adapter) == "it is broken"
        assert setup.event_lists == [[SequenceFailed(sequence_id, "it is broken")]]
    run_scenario(scenario)


def test_request_may_start_once_its_adapter_is_loaded() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        sequence_id = setup.submit(setup.make_adapter())
        assert setup.scheduler.plan(0.0) is None
        await setup.run_commands()
        plan = setup.scheduler.plan(0.0)
        assert plan is not None
        assert plan.member_ids == (sequence_id,)
    run_scenario(scenario)


# -- unloading


def test_adapter_is_unloaded_when_no_request_needs_it() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        adapter = setup.make_adapter()
        await setup.load(adapter)
        sequence_id = setup.submit(adapter)
        await setup.unload(adapter)
        assert setup.controller.adapter_states == {adapter: AdapterStatus("loaded", 1)}
        setup.scheduler.cancel(sequence_id, 0.0)
        await setup.run_commands()
        assert setup.controller.adapter_states == {}
        assert setup.shards.calls == [("load", 1), ("unload", 1)]
    run_scenario(scenario)


def test_unloaded_adapter_can_be_loaded_again() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        adapter = setup.make_adapter()
        await setup.load(adapter)
        await setup.unload(adapter)
        assert setup.controller.adapter_states == {}
        assert await setup.load(adapter) == ""
        assert setup.shards.calls == [("load", 1), ("unload", 1), ("load", 1)]
    run_scenario(scenario)


def test_caller_waits_for_a_load_behind_the_unload_under_way() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        adapter = setup.make_adapter()
        await setup.load(adapter)
        setup.controller.request_resource_unload(adapter)
        setup.scheduler.on_timer(0.0)  # decides on the unload
        [task] = await setup.start_loading(adapter)
        await setup.run_commands()
        assert not task.done()
        await setup.run_commands()
        assert await task == ""
        assert setup.shards.calls == [("load", 1), ("unload", 1), ("load", 1)]
    run_scenario(scenario)


def test_caller_that_revokes_an_unload_waits_for_no_load() -> None:
    """The unload waits for the step that uses the adapter."""
    async def scenario(setup: ControllerSetup) -> None:
        adapter = setup.make_adapter()
        await setup.load(adapter)
        sequence_id = setup.submit(adapter)
        assert setup.scheduler.plan(0.0) is not None
        setup.scheduler.cancel(sequence_id, 0.0)
        await setup.unload(adapter)
        [task] = await setup.start_loading(adapter)
        assert not task.done()
        await setup.run_commands()
        assert (await task, setup.shards.calls) == ("", [("load", 1)])
    run_scenario(scenario)


# -- unloads while callers wait


def test_unload_of_an_adapter_whose_load_was_not_sent_answers_the_waiting_callers() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        adapter = setup.make_adapter()
        tasks = await setup.start_loading(adapter, adapter)
        await setup.unload(adapter)
        assert [await task for task in tasks] == [UNLOADED_WHILE_WAITING] * 2
        assert setup.shards.calls == []
    run_scenario(scenario)


def test_unload_answers_the_callers_that_wait_behind_the_unload_under_way() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        adapter = setup.make_adapter()
        await setup.load(adapter)
        setup.controller.request_resource_unload(adapter)
        setup.scheduler.on_timer(0.0)  # decides on the unload
        [task] = await setup.start_loading(adapter)
        await setup.unload(adapter)
        assert await task == UNLOADED_WHILE_WAITING
        await setup.run_commands()
        assert setup.shards.calls == [("load", 1), ("unload", 1)]
    run_scenario(scenario)


def test_unload_answers_the_callers_at_once_while_the_shards_are_lost() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        [task] = await setup.start_loading(adapter := setup.make_adapter())
        setup.scheduler.on_timer(0.0)  # decides on the load
        setup.scheduler.on_shards_lost(ShardLossReason.DEFECT, 0.0)
        setup.controller.request_resource_unload(adapter)
        assert await task == UNLOADED_WHILE_WAITING
    run_scenario(scenario)


def test_unload_answers_the_callers_although_a_request_still_needs_the_adapter() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        sequence_id = setup.submit(adapter := setup.make_adapter())
        [task] = await setup.start_loading(adapter)
        setup.controller.request_resource_unload(adapter)
        setup.scheduler.cancel(sequence_id, 0.0)
        await setup.run_commands()
        assert (await task, setup.shards.calls) == (UNLOADED_WHILE_WAITING, [])
    run_scenario(scenario)


def test_load_of_another_caller_after_the_unload_succeeds() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        [first] = await setup.start_loading(adapter := setup.make_adapter())
        setup.controller.request_resource_unload(adapter)
        [second] = await setup.start_loading(adapter)
        await setup.run_commands()
        assert (await first, await second, setup.shards.calls) == (UNLOADED_WHILE_WAITING, "", [("load", 1)])
    run_scenario(scenario)


def test_caller_is_answered_if_the_adapter_came_back_and_was_evicted_before_it_heard() -> None:
    """The eviction of `a` is revoked, and begins anew for another adapter before the engine's loop runs."""
    async def scenario(setup: ControllerSetup) -> None:
        adapters = [setup.make_adapter(source, 1000) for source in "abc"]
        await setup.load(adapters[0])
        sequence_id = setup.submit(adapters[0])
        assert setup.scheduler.plan(0.0) is not None
        setup.scheduler.cancel(sequence_id, 0.0)  # its step is in flight
        first_claim = setup.submit(adapters[1])
        setup.scheduler.on_timer(0.0)  # begins to evict `a`
        [task] = await setup.start_loading(adapters[0])
        setup.scheduler.cancel(first_claim, 0.0)
        setup.scheduler.on_timer(0.0)  # revokes the eviction
        setup.submit(adapters[2])
        setup.scheduler.on_timer(0.0)  # evicts `a` again
        await setup.run_commands()
        assert await task == UNLOADED_WHILE_WAITING
    run_scenario(scenario)


# -- losses of the shards, and the end


@pytest.mark.parametrize("loss_reason", [ShardLossReason.DEATH, ShardLossReason.DEFECT])
def test_loss_of_the_shards_only_delays_a_load(loss_reason: ShardLossReason) -> None:
    async def scenario(setup: ControllerSetup) -> None:
        [task] = await setup.start_loading(setup.make_adapter())
        setup.scheduler.on_timer(0.0)  # decides on the load
        await setup.replace_shards(loss_reason, 2)
        assert (task.done(), setup.shards.calls) == (False, [])
        await setup.run_commands()
        assert await task == ""
    run_scenario(scenario)


def test_caller_whose_adapter_no_longer_fits_hears_why_and_it_is_not_loaded() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        large, small = await setup.start_loading(setup.make_adapter("a", 900), setup.make_adapter("b", 100))
        await setup.replace_shards(ShardLossReason.DEATH, 2, replace(MODEL_INFO, adapter_bytes=500))
        assert (await large).startswith("the adapter takes 900 bytes of memory, and there are 500")
        await setup.run_commands()
        assert (await small, setup.shards.calls) == ("", [("load", 2)])
    run_scenario(scenario)


class LoadCaller(NamedTuple):
    adapter: LoadableResource
    task: "asyncio.Task[str]"
    possible_results: set[str]


async def run_operation(setup: ControllerSetup, callers: list[LoadCaller], operation: str, adapter: LoadableResource,
                        epoch: int) -> None:
    if operation == "load":
        [task] = await setup.start_loading(adapter)
        callers.append(LoadCaller(adapter, task, {""}))
    elif operation == "unload":
        for caller in callers:
            if caller.adapter is adapter and not caller.task.done():
                caller.possible_results.add(UNLOADED_WHILE_WAITING)
        setup.controller.request_resource_unload(adapter)
    elif operation == "decide":
        setup.scheduler.on_timer(0.0)
    elif operation == "run":
        await setup.run_commands()
    else:
        await setup.replace_shards(ShardLossReason[operation], epoch)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["load", "load", "unload", "decide", "run", "DEATH", "DEFECT"]),
                          st.integers(0, 2)), max_size=12))
def test_every_caller_gets_an_answer_in_the_end(operations: list[tuple[str, int]]) -> None:
    """Two of the three adapters fit. Only callers whose adapter is unloaded while they wait may not get it."""
    async def scenario(setup: ControllerSetup) -> None:
        adapters, callers = [setup.make_adapter(source, 400) for source in "abc"], list[LoadCaller]()
        for epoch, (operation, index) in enumerate(operations, 2):
            await run_operation(setup, callers, operation, adapters[index], epoch)
        for _ in range(6):  # an unload and a load for each
            await setup.run_commands()
        await asyncio.sleep(0)  # for the callers woken last
        for caller in callers:
            assert caller.task.done()
            assert caller.task.result() in caller.possible_results
    run_scenario(scenario)


def test_stopped_server_fails_waiting_and_later_callers() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        adapter = setup.make_adapter()
        [waiting] = await setup.start_loading(adapter)
        setup.controller.stop_loading("the server stops")
        for call in (waiting, setup.controller.load(adapter)):
            with pytest.raises(NotReady, match="the server stops"):
                await call
    run_scenario(scenario)


# -- what the engine and the metrics are told


def test_engine_is_woken_by_every_request_for_a_load_or_an_unload() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        adapter = setup.make_adapter()
        await setup.load(adapter)
        assert setup.num_wakes == 1
        setup.controller.request_resource_unload(adapter)
        assert setup.num_wakes == 2
    run_scenario(scenario)


def test_engine_hears_of_every_result_even_if_it_causes_no_events() -> None:
    """The engine plans again when it hears of a result."""
    async def scenario(setup: ControllerSetup) -> None:
        adapter = setup.make_adapter()
        await setup.load(adapter)
        await setup.unload(adapter)
        setup.shards.failure_reason = "it is broken"
        await setup.load(adapter)
        assert setup.event_lists == [[], [], []]
    run_scenario(scenario)


def test_loads_and_unloads_of_adapters_are_counted_and_successful_loads_timed() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        adapter = setup.make_adapter()
        await setup.load(adapter)
        await setup.unload(adapter)
        setup.shards.failure_reason = "it is broken"
        await setup.load(adapter)
        samples = setup.get_samples()
        assert [samples[f'weft_adapter_loads{{outcome="{outcome}"}}'] for outcome in ("ok", "failed")] == [1, 1]
        assert (samples["weft_adapter_unloads"], samples["weft_adapter_load_seconds_count"]) == (1, 1)
    run_scenario(scenario)


def test_loads_and_unloads_of_grammars_are_not_counted_as_adapters() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        grammar = setup.controller.loader.get_or_register("grammar", "a")
        assert await setup.load(grammar) == ""
        await setup.unload(grammar)
        assert setup.shards.calls == [("load", 1), ("unload", 1)]
        samples = setup.get_samples()
        assert (samples["weft_adapter_unloads"], samples["weft_adapter_load_seconds_count"]) == (0, 0)
        assert samples['weft_adapter_loads{outcome="ok"}'] == 0
    run_scenario(scenario)


def test_server_without_adapter_metrics_loads_and_unloads_too() -> None:
    async def scenario(setup: ControllerSetup) -> None:
        adapter = setup.make_adapter()
        assert await setup.load(adapter) == ""
        await setup.unload(adapter)
        assert setup.shards.calls == [("load", 1), ("unload", 1)]
    run_scenario(scenario, has_adapter_metrics=False)
