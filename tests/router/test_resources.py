"""Tests of router/resources.py, against ranks that follow a script."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from math import inf
from typing import Any

import pytest

from router.errors import Overloaded
from router.meeting import Meeting
from router.messages import ModelFacts
from router.request import Resource
from router.resources import MOST_UNUSED, Resources
from router.shards import ShardsLost
from router.trials import Loss
from shard.pb import shard_pb2 as pb

FACTS = ModelFacts("loom", "cpu", "float32", vocabulary_size=512, max_positions=64, block_size=16, num_blocks=4)


class Ranks:
    """They load what they are told to, unless they are stopped, gone, or have a reason."""

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
        self.heard: list[tuple[int, str]] = []
        self.oldest_step = inf
        self.resources = Resources(self.ranks, lambda resource, why: self.heard.append((resource.id, why)),
                                   lambda: self.oldest_step)

    async def meet(self, epoch: int, loaded: Iterable[Resource] = (), leftovers: Iterable[Resource] = ()) -> None:
        everywhere = frozenset(loaded)
        await self.resources.met(Meeting(FACTS, epoch, everywhere, everywhere | frozenset(leftovers)))

    def want(self, source: str) -> Resource:
        resource = self.resources.of("grammar", source)
        self.resources.hold([resource])
        return resource

    async def settle(self) -> None:
        while self.resources._tasks:
            await asyncio.wait(self.resources._tasks)


def play(story: Callable[[House], Awaitable[Any]], *, met: bool = True) -> None:
    async def told() -> None:
        house = House()
        if met:
            await house.meet(1)
        await story(house)
        await house.resources.close()
    asyncio.run(told())


def test_a_resource_is_loaded_once_for_all_who_need_it() -> None:
    async def story(house: House) -> None:
        assert [house.want("a").id, house.want("b").id, house.want("a").id] == [1, 2, 1]
        await house.settle()
        assert house.ranks.calls == [("load", 1, 1), ("load", 2, 1)]
        assert house.ranks.sources == {1: "a", 2: "b"}
        assert house.heard == [(1, ""), (2, "")]
        house.want("a")
        await house.settle()
        assert len(house.ranks.calls) == 2
    play(story)


def test_kinds_count_for_themselves() -> None:
    async def story(house: House) -> None:
        assert house.resources.of("adapter", "a") == Resource("adapter", 1)
        assert house.resources.of("grammar", "a") == Resource("grammar", 1)
    play(story)


def test_what_is_not_held_is_not_loaded() -> None:
    async def story(house: House) -> None:
        house.resources.of("grammar", "a")
        await house.settle()
        assert house.ranks.calls == []
    play(story)


def test_a_resource_that_cannot_be_loaded_is_told_and_tried_again_for_the_next() -> None:
    async def story(house: House) -> None:
        house.ranks.reason = "no"
        resource = house.want("a")
        await house.settle()
        assert house.heard == [(1, "no")]
        assert house.ranks.calls == [("load", 1, 1), ("unload", 1, 1)]
        house.resources.release([resource])
        house.ranks.reason = ""
        house.want("a")
        await house.settle()
        assert house.heard == [(1, "no"), (1, "")]
    play(story)


def test_new_shards_load_again_what_is_needed_and_nothing_else() -> None:
    async def story(house: House) -> None:
        needed, over = house.want("a"), house.want("b")
        await house.settle()
        house.resources.release([over])
        house.resources.lost(everything=True)
        await house.meet(2)
        await house.settle()
        assert house.ranks.calls[2:] == [("load", needed.id, 2)]
        assert house.heard[2:] == [(1, "")]
        house.want("b")
        await house.settle()
        assert house.ranks.calls[3:] == [("load", over.id, 2)]
    play(story)


def test_shards_that_kept_their_state_load_nothing_again() -> None:
    async def story(house: House) -> None:
        resource = house.want("a")
        await house.settle()
        house.resources.lost(everything=False)
        await house.meet(2, [resource])
        await house.settle()
        assert len(house.ranks.calls) == 1
    play(story)


def test_what_the_core_takes_for_present_is_there_before_it_goes_on() -> None:
    """Shards that were replaced though the loss was no death."""
    async def story(house: House) -> None:
        house.want("a")
        await house.settle()
        house.resources.lost(everything=False)
        await house.meet(2)
        assert house.ranks.calls[1:] == [("load", 1, 2)]
    play(story)


def test_a_load_that_a_loss_overtakes_is_asked_for_again() -> None:
    async def story(house: House) -> None:
        house.ranks.let_go.clear()
        house.want("a")
        await asyncio.sleep(0)
        house.resources.lost(everything=False)
        house.ranks.reason = "of another epoch"
        house.ranks.let_go.set()
        await house.settle()
        assert house.heard == []
        house.ranks.reason = ""
        await house.meet(2)
        await house.settle()
        assert house.heard == [(1, "")]
    play(story)


def test_shards_that_go_away_are_nobodys_fault() -> None:
    async def story(house: House) -> None:
        house.ranks.are_gone = True
        house.want("a")
        await house.settle()
        assert house.heard == []
        house.ranks.are_gone = False
        house.resources.lost(everything=True)
        await house.meet(2)
        await house.settle()
        assert house.heard == [(1, "")]
    play(story)


def test_while_there_are_no_shards_it_waits() -> None:
    async def story(house: House) -> None:
        house.want("a")
        await house.settle()
        assert house.ranks.calls == []
        await house.meet(1)
        await house.settle()
        assert house.heard == [(1, "")]
    play(story, met=False)


def test_what_an_earlier_router_left_is_unloaded_and_its_numbers_are_not_used() -> None:
    async def story(house: House) -> None:
        await house.meet(5, leftovers=[Resource("grammar", 7), Resource("grammar", 3)])
        assert house.want("a").id == 8
        await house.settle()
        assert sorted(house.ranks.calls) == [("load", 8, 5), ("unload", 3, 5), ("unload", 7, 5)]
    play(story, met=False)


async def use(house: House, source: str) -> Resource:
    resource = house.want(source)
    await house.settle()
    house.resources.release([resource])
    await house.settle()
    return resource


def test_of_many_unused_ones_the_oldest_is_unloaded() -> None:
    async def story(house: House) -> None:
        for number in range(MOST_UNUSED):
            await use(house, str(number))
        await use(house, "0")
        await use(house, "one more")
        assert [call for call in house.ranks.calls if call[0] == "unload"] == [("unload", 2, 1)]
        assert house.heard[-2:] == [(2, "it was unloaded"), (MOST_UNUSED + 1, "")]
        assert (await use(house, "0")).id == 1
        assert (await use(house, "1")).id == MOST_UNUSED + 2
    play(story)


def test_nothing_is_unloaded_while_a_step_that_used_it_is_under_way() -> None:
    async def story(house: House) -> None:
        house.oldest_step = -inf
        for number in range(MOST_UNUSED + 2):
            await use(house, str(number))
        assert {call[0] for call in house.ranks.calls} == {"load"}
        house.oldest_step = inf
        await use(house, "0")
        assert [call[:2] for call in house.ranks.calls[-2:]] == [("unload", 2), ("unload", 3)]
    play(story)


def test_what_is_needed_is_never_unloaded() -> None:
    async def story(house: House) -> None:
        held = house.want("held")
        for number in range(2 * MOST_UNUSED):
            await use(house, str(number))
        assert ("unload", held.id, 1) not in house.ranks.calls
    play(story)


def test_who_comes_too_late_is_told_to_try_again() -> None:
    async def story(house: House) -> None:
        late = house.resources.of("grammar", "late")
        for number in range(MOST_UNUSED):
            house.resources.of("grammar", str(number))
        with pytest.raises(Overloaded, match="grammar"):
            house.resources.hold([late])
    play(story)
