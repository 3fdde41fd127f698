"""Tests of router/engine/arrivals.py."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router.engine.arrivals import Arrivals
from router.errors import NotReady
from router.request import Resource

A, B = Resource("adapter", 1), Resource("adapter", 2)


def play(story: Callable[[Arrivals], Awaitable[Any]]) -> None:
    asyncio.run(asyncio.wait_for(told(story), 5.0))


async def told(story: Callable[[Arrivals], Awaitable[Any]]) -> None:
    await story(Arrivals())


async def waiting(arrivals: Arrivals, *resources: Resource) -> list["asyncio.Task[str]"]:
    tasks = [asyncio.create_task(arrivals.of(resource)) for resource in resources]
    await asyncio.sleep(0)
    return tasks


def test_everybody_who_waits_for_it_hears_of_it_and_nobody_else() -> None:
    async def story(arrivals: Arrivals) -> None:
        first, second, other = await waiting(arrivals, A, A, B)
        assert arrivals.awaited == [A, B]
        arrivals.came(A)
        assert await asyncio.gather(first, second) == ["", ""]
        assert not other.done()
        arrivals.came(B, "it is broken")
        assert await other == "it is broken"
        assert arrivals.awaited == []
    play(story)


def test_what_nobody_waits_for_is_no_news() -> None:
    async def story(arrivals: Arrivals) -> None:
        arrivals.came(A)
    play(story)


def test_who_leaves_takes_nothing_from_others() -> None:
    async def story(arrivals: Arrivals) -> None:
        leaves, stays = await waiting(arrivals, A, A)
        leaves.cancel()
        await asyncio.wait([leaves])
        arrivals.came(A)
        assert await stays == ""
    play(story)


def test_who_waits_when_everything_ends_is_told() -> None:
    async def story(arrivals: Arrivals) -> None:
        [task] = await waiting(arrivals, A)
        arrivals.give_up("the server is shutting down")
        with pytest.raises(NotReady, match="shutting down"):
            await task
        assert arrivals.awaited == []
    play(story)
