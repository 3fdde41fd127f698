"""Tests of router/shards/adapter_grammar_loader.py against scripted ranks."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from router.model_info import ModelInfo
from router.request import LoadableResource
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.shard_messages import LoadResource, UnloadResource
from router.shards import adapter_grammar_loader
from router.shards.adapter_grammar_loader import AdapterGrammarLoader
from router.shards.failures import ShardsLost
from router.shards.handshake import HandshakeResult
from shard.pb import shard_pb2 as pb

MODEL_INFO = ModelInfo("loom", "cpu", "float32", vocabulary_size=512, max_positions=64, block_size=16, num_blocks=4)


class ScriptedRanks:
    """Double of the ranks: a load waits for `may_finish`, fails if `are_disconnected`, and returns `reason`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []  # verb, number, epoch
        self.requests: list[pb.LoadRequest | pb.UnloadRequest] = []
        self.sources: dict[int, str] = {}
        self.reason = ""
        self.are_disconnected = False
        self.may_finish = asyncio.Event()
        self.may_finish.set()

    async def load_or_unload(self, request: pb.LoadRequest | pb.UnloadRequest) -> str:
        self.requests.append(request)
        if isinstance(request, pb.UnloadRequest):
            self.calls.append(("unload", request.id, request.epoch))
            return ""
        self.calls.append(("load", request.id, request.epoch))
        self.sources[request.id] = request.source
        await self.may_finish.wait()
        if self.are_disconnected:
            raise ShardsLost(ShardLossReason.DEATH, "gone")
        return self.reason


class LoaderSetup:
    def __init__(self) -> None:
        self.ranks = ScriptedRanks()
        self.reported_events: list[tuple[str, int, str]] = []
        self.finished_loads: list[tuple[str, float, str]] = []
        self.loader = AdapterGrammarLoader(
            self.ranks,
            lambda resource, reason: self.reported_events.append(("failed" if reason else "here", resource.id, reason)),
            lambda resource: self.reported_events.append(("removed", resource.id, "")),
            lambda resource, seconds, reason: self.finished_loads.append((resource.kind, seconds, reason)))

    async def restore_after_handshake(self, epoch: int, loaded: Iterable[LoadableResource] = (),
                                      leftovers: Iterable[LoadableResource] = ()) -> None:
        everywhere = frozenset(loaded)
        await self.loader.restore_after_handshake(HandshakeResult(MODEL_INFO, epoch, everywhere,
                                                                  everywhere | frozenset(leftovers)))

    async def load_grammar(self, source: str) -> LoadableResource:
        resource = self.loader.get_or_register("grammar", source)
        self.loader.execute_commands([LoadResource(resource)])
        await self.wait_for_tasks()
        return resource

    async def wait_for_tasks(self) -> None:
        while self.loader._tasks:
            await asyncio.wait(self.loader._tasks)


def run_scenario(scenario: Callable[[LoaderSetup], Awaitable[Any]]) -> None:
    async def main() -> None:
        setup = LoaderSetup()
        await setup.restore_after_handshake(1)
        await scenario(setup)
        await setup.loader.close()
    asyncio.run(main())


def test_source_keeps_its_number_as_long_as_it_is_in_use() -> None:
    async def scenario(setup: LoaderSetup) -> None:
        first, second = setup.loader.get_or_register("grammar", "a"), setup.loader.get_or_register("grammar", "b")
        assert (first.id, second.id) == (1, 2)
        assert setup.loader.get_or_register("grammar", "a") is first
        del first
        gc.collect()
        assert setup.loader.get_or_register("grammar", "a").id == 3
    run_scenario(scenario)


def test_resource_kinds_are_numbered_separately() -> None:
    async def scenario(setup: LoaderSetup) -> None:
        assert setup.loader.get_or_register("adapter", "a", 7, is_pinned=True) == LoadableResource("adapter", 1)
        assert setup.loader.get_or_register("grammar", "a") == LoadableResource("grammar", 1)
    run_scenario(scenario)


@pytest.mark.parametrize(("kind", "on_wire"), [("adapter", pb.KIND_ADAPTER), ("grammar", pb.KIND_GRAMMAR)])
def test_resources_are_identified_by_kind_and_number(kind: str, on_wire: "pb.Kind") -> None:
    async def scenario(setup: LoaderSetup) -> None:
        resource = setup.loader.get_or_register(kind, "source")
        setup.loader.execute_commands([LoadResource(resource)])
        await setup.wait_for_tasks()
        setup.loader.execute_commands([UnloadResource(resource)])
        await setup.wait_for_tasks()
        assert setup.ranks.requests == [pb.LoadRequest(epoch=1, kind=on_wire, id=1, source="source"),
                                        pb.UnloadRequest(epoch=1, kind=on_wire, id=1)]
    run_scenario(scenario)


def test_commands_are_executed_and_reported() -> None:
    async def scenario(setup: LoaderSetup) -> None:
        resource = await setup.load_grammar("a")
        setup.loader.execute_commands([UnloadResource(resource)])
        await setup.wait_for_tasks()
        assert setup.ranks.calls == [("load", 1, 1), ("unload", 1, 1)]
        assert setup.ranks.sources == {1: "a"}
        assert setup.reported_events == [("here", 1, ""), ("removed", 1, "")]
    run_scenario(scenario)


def test_failed_load_is_reported_after_it_was_undone_on_all_ranks() -> None:
    async def scenario(setup: LoaderSetup) -> None:
        setup.ranks.reason = "no"
        await setup.load_grammar("a")
        assert setup.reported_events == [("failed", 1, "no")]
        assert setup.ranks.calls == [("load", 1, 1), ("unload", 1, 1)]
    run_scenario(scenario)


def test_shards_that_kept_their_state_load_nothing_again() -> None:
    async def scenario(setup: LoaderSetup) -> None:
        resource = await setup.load_grammar("a")
        setup.loader.end_epoch(resources_lost=False)
        await setup.restore_after_handshake(2, [resource])
        assert len(setup.ranks.calls) == 1
    run_scenario(scenario)


def test_missing_resources_are_reloaded_before_the_handshake_ends() -> None:
    """Resources are missing if the shards were replaced, even if their loss was not reported as a death."""
    async def scenario(setup: LoaderSetup) -> None:
        resource = await setup.load_grammar("a")
        setup.loader.end_epoch(resources_lost=False)
        await setup.restore_after_handshake(2)
        assert setup.ranks.calls[1:] == [("load", 1, 2)]
        setup.ranks.reason = "it is gone"
        setup.loader.end_epoch(resources_lost=False)
        await setup.restore_after_handshake(3)
        assert setup.reported_events[-1] == ("failed", resource.id, "it is gone")
    run_scenario(scenario)


def test_only_pinned_resources_are_reloaded_after_a_shard_death() -> None:
    async def scenario(setup: LoaderSetup) -> None:
        stays = setup.loader.get_or_register("adapter", "s", is_pinned=True)
        assert await setup.loader.load_permanently(stays) == ""
        await setup.load_grammar("a")
        setup.loader.end_epoch(resources_lost=True)
        await setup.restore_after_handshake(2)
        assert setup.ranks.calls[2:] == [("load", 1, 2)]
        assert setup.ranks.sources[1] == "s"
        assert setup.reported_events[-1] == ("here", 1, "")
    run_scenario(scenario)


def test_failure_to_pin_a_resource_is_reported() -> None:
    async def scenario(setup: LoaderSetup) -> None:
        setup.ranks.reason = "it is broken"
        assert (await setup.loader.load_permanently(setup.loader.get_or_register("adapter", "s", is_pinned=True))
                == "it is broken")
    run_scenario(scenario)


def test_load_overtaken_by_a_loss_is_not_reported() -> None:
    async def scenario(setup: LoaderSetup) -> None:
        setup.ranks.may_finish.clear()
        resource = setup.loader.get_or_register("grammar", "a")
        setup.loader.execute_commands([LoadResource(resource)])
        await asyncio.sleep(0)
        setup.loader.end_epoch(resources_lost=False)
        setup.ranks.reason = "of another epoch"
        setup.ranks.may_finish.set()
        await setup.wait_for_tasks()
        assert setup.reported_events == []
    run_scenario(scenario)


def test_disconnected_shards_report_no_load_failure() -> None:
    async def scenario(setup: LoaderSetup) -> None:
        setup.ranks.are_disconnected = True
        await setup.load_grammar("a")
        assert setup.reported_events == []
    run_scenario(scenario)


def test_adapter_loads_are_counted_by_source_and_timed() -> None:
    async def scenario(setup: LoaderSetup) -> None:
        resource = setup.loader.get_or_register("adapter", "a")
        for reason in ("", "no", ""):
            setup.ranks.reason = reason
            setup.loader.execute_commands([LoadResource(resource)])
            await setup.wait_for_tasks()
        await setup.load_grammar("a grammar")
        assert (setup.loader.count_past_loads("a"), setup.loader.count_past_loads("a grammar")) == (2, 0)
        assert [(kind, reason) for kind, _, reason in setup.finished_loads] == [
            ("adapter", ""), ("adapter", "no"), ("adapter", ""), ("grammar", "")]
        assert all(seconds >= 0 for _, seconds, _ in setup.finished_loads)
    run_scenario(scenario)


def test_number_of_counted_sources_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(setup: LoaderSetup) -> None:
        monkeypatch.setattr(adapter_grammar_loader, "MAX_COUNTED_ADAPTERS", 2)
        for source in ("a", "b", "a", "c"):
            setup.loader.execute_commands([LoadResource(setup.loader.get_or_register("adapter", source))])
            await setup.wait_for_tasks()
        assert [setup.loader.count_past_loads(source) for source in "abc"] == [2, 0, 1]
    run_scenario(scenario)


def test_resources_left_by_an_earlier_router_are_unloaded_and_their_numbers_skipped() -> None:
    async def scenario(setup: LoaderSetup) -> None:
        await setup.restore_after_handshake(5,
                                            leftovers=[LoadableResource("grammar", 7), LoadableResource("grammar", 3)])
        await setup.load_grammar("a")
        assert sorted(setup.ranks.calls) == [("load", 8, 5), ("unload", 3, 5), ("unload", 7, 5)]
    run_scenario(scenario)
