"""Tests of router/shards/resource_loader.py against scripted ranks."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from router.request import Resource
from router.scheduler.fault_isolation import Loss
from router.scheduler.plan import Bring, ModelFacts, Remove
from router.shards import resource_loader
from router.shards.failures import ShardsLost
from router.shards.handshake import Meeting
from router.shards.resource_loader import Resources, Told
from shard.pb import shard_pb2 as pb

FACTS = ModelFacts("loom", "cpu", "float32", vocabulary_size=512, max_positions=64, block_size=16, num_blocks=4)


class Ranks:
    """Double of the ranks: a load waits for `let_go`, fails if `are_gone`, and returns `reason`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []  # verb, number, epoch
        self.sources: dict[int, str] = {}
        self.reason = ""
        self.are_gone = False
        self.let_go = asyncio.Event()
        self.let_go.set()

    async def load(self, request: pb.LoadRequest) -> str:
        self.calls.append(("load", request.id, request.epoch))
        self.sources[request.id] = request.source
        await self.let_go.wait()
        if self.are_gone:
            raise ShardsLost(Loss.DEATH, "gone")
        return self.reason

    async def unload(self, request: pb.UnloadRequest) -> str:
        self.calls.append(("unload", request.id, request.epoch))
        return ""


class House:
    def __init__(self) -> None:
        self.ranks = Ranks()
        self.heard: list[tuple[str, int, str]] = []
        self.took: list[tuple[str, float, str]] = []
        self.resources = Resources(self.ranks, Told(
            lambda resource: self.heard.append(("here", resource.id, "")),
            lambda resource, why: self.heard.append(("failed", resource.id, why)),
            lambda resource: self.heard.append(("removed", resource.id, "")),
            lambda resource, seconds, why: self.took.append((resource.kind, seconds, why))))

    async def meet(self, epoch: int, loaded: Iterable[Resource] = (), leftovers: Iterable[Resource] = ()) -> None:
        everywhere = frozenset(loaded)
        await self.resources.met(Meeting(FACTS, epoch, everywhere, everywhere | frozenset(leftovers)))

    async def bring(self, source: str) -> Resource:
        resource = self.resources.of("grammar", source)
        self.resources.carry_out([Bring(resource)])
        await self.settle()
        return resource

    async def settle(self) -> None:
        while self.resources._tasks:
            await asyncio.wait(self.resources._tasks)


def play(story: Callable[[House], Awaitable[Any]]) -> None:
    async def told() -> None:
        house = House()
        await house.meet(1)
        await story(house)
        await house.resources.close()
    asyncio.run(told())


def test_a_source_has_one_number_as_long_as_anybody_knows_it() -> None:
    async def story(house: House) -> None:
        first, other = house.resources.of("grammar", "a"), house.resources.of("grammar", "b")
        assert (first.id, other.id) == (1, 2)
        assert house.resources.of("grammar", "a") is first
        del first
        gc.collect()
        assert house.resources.of("grammar", "a").id == 3
    play(story)


def test_kinds_count_for_themselves() -> None:
    async def story(house: House) -> None:
        assert house.resources.of("adapter", "a", 7, stays=True) == Resource("adapter", 1)
        assert house.resources.of("grammar", "a") == Resource("grammar", 1)
    play(story)


def test_what_the_core_wishes_is_done_and_told() -> None:
    async def story(house: House) -> None:
        resource = await house.bring("a")
        house.resources.carry_out([Remove(resource)])
        await house.settle()
        assert house.ranks.calls == [("load", 1, 1), ("unload", 1, 1)]
        assert house.ranks.sources == {1: "a"}
        assert house.heard == [("here", 1, ""), ("removed", 1, "")]
    play(story)


def test_what_cannot_be_loaded_is_told_once_no_rank_has_it() -> None:
    async def story(house: House) -> None:
        house.ranks.reason = "no"
        await house.bring("a")
        assert house.heard == [("failed", 1, "no")]
        assert house.ranks.calls == [("load", 1, 1), ("unload", 1, 1)]
    play(story)


def test_shards_that_kept_their_state_load_nothing_again() -> None:
    async def story(house: House) -> None:
        resource = await house.bring("a")
        house.resources.lost(everything=False)
        await house.meet(2, [resource])
        assert len(house.ranks.calls) == 1
    play(story)


def test_what_the_core_takes_for_present_is_there_before_it_goes_on() -> None:
    """The shards were replaced although the loss was no death."""
    async def story(house: House) -> None:
        resource = await house.bring("a")
        house.resources.lost(everything=False)
        await house.meet(2)
        assert house.ranks.calls[1:] == [("load", 1, 2)]
        house.ranks.reason = "it is gone"
        house.resources.lost(everything=False)
        await house.meet(3)
        assert house.heard[-1] == ("failed", resource.id, "it is gone")
    play(story)


def test_after_a_death_only_what_stays_is_loaded_again() -> None:
    async def story(house: House) -> None:
        stays = house.resources.of("adapter", "s", stays=True)
        assert await house.resources.keep(stays) == ""
        await house.bring("a")
        house.resources.lost(everything=True)
        await house.meet(2)
        assert house.ranks.calls[2:] == [("load", 1, 2)]
        assert house.ranks.sources[1] == "s"
        assert house.heard[-1] == ("here", 1, "")
    play(story)


def test_what_should_stay_and_cannot_is_told() -> None:
    async def story(house: House) -> None:
        house.ranks.reason = "it is broken"
        assert await house.resources.keep(house.resources.of("adapter", "s", stays=True)) == "it is broken"
    play(story)


def test_a_load_that_a_loss_overtakes_is_not_told() -> None:
    async def story(house: House) -> None:
        house.ranks.let_go.clear()
        resource = house.resources.of("grammar", "a")
        house.resources.carry_out([Bring(resource)])
        await asyncio.sleep(0)
        house.resources.lost(everything=False)
        house.ranks.reason = "of another epoch"
        house.ranks.let_go.set()
        await house.settle()
        assert house.heard == []
    play(story)


def test_shards_that_go_away_are_nobodys_fault() -> None:
    async def story(house: House) -> None:
        house.ranks.are_gone = True
        await house.bring("a")
        assert house.heard == []
    play(story)


def test_loads_of_adapters_are_counted_by_source_and_told_with_the_time_they_took() -> None:
    async def story(house: House) -> None:
        resource = house.resources.of("adapter", "a")
        for reason in ("", "no", ""):
            house.ranks.reason = reason
            house.resources.carry_out([Bring(resource)])
            await house.settle()
        await house.bring("a grammar")
        assert (house.resources.num_loads("a"), house.resources.num_loads("a grammar")) == (2, 0)
        assert [(kind, reason) for kind, _, reason in house.took] == [
            ("adapter", ""), ("adapter", "no"), ("adapter", ""), ("grammar", "")]
        assert all(seconds >= 0 for _, seconds, _ in house.took)
    play(story)


def test_of_loads_only_so_many_sources_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(house: House) -> None:
        monkeypatch.setattr(resource_loader, "MOST_COUNTED", 2)
        for source in ("a", "b", "a", "c"):
            house.resources.carry_out([Bring(house.resources.of("adapter", source))])
            await house.settle()
        assert [house.resources.num_loads(source) for source in "abc"] == [2, 0, 1]
    play(story)


def test_what_an_earlier_router_left_is_unloaded_and_its_numbers_are_not_used() -> None:
    async def story(house: House) -> None:
        await house.meet(5, leftovers=[Resource("grammar", 7), Resource("grammar", 3)])
        await house.bring("a")
        assert sorted(house.ranks.calls) == [("load", 8, 5), ("unload", 3, 5), ("unload", 7, 5)]
    play(story)
