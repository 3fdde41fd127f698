"""Tests of router/engine/resource_load_waiters.py."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router.engine.resource_load_waiters import ResourceLoadWaiters
from router.errors import NotReady
from router.request import LoadableResource

ADAPTER_A, ADAPTER_B = LoadableResource("adapter", 1), LoadableResource("adapter", 2)


def run_scenario(scenario: Callable[[ResourceLoadWaiters], Awaitable[Any]]) -> None:
    asyncio.run(asyncio.wait_for(call_with_load_waiters(scenario), 5.0))


async def call_with_load_waiters(scenario: Callable[[ResourceLoadWaiters], Awaitable[Any]]) -> None:
    await scenario(ResourceLoadWaiters())


async def start_waiting(waiters: ResourceLoadWaiters, *resources: LoadableResource) -> list["asyncio.Task[str]"]:
    tasks = [asyncio.create_task(waiters.wait_for(resource)) for resource in resources]
    await asyncio.sleep(0)
    return tasks


def test_all_waiters_of_a_resource_are_notified_and_no_others() -> None:
    async def scenario(waiters: ResourceLoadWaiters) -> None:
        first, second, third = await start_waiting(waiters, ADAPTER_A, ADAPTER_A, ADAPTER_B)
        assert waiters.awaited_resources == [ADAPTER_A, ADAPTER_B]
        waiters.resolve(ADAPTER_A)
        assert await asyncio.gather(first, second) == ["", ""]
        assert not third.done()
        waiters.resolve(ADAPTER_B, "it is broken")
        assert await third == "it is broken"
        assert waiters.awaited_resources == []
    run_scenario(scenario)


def test_notification_without_waiters_is_ignored() -> None:
    async def scenario(waiters: ResourceLoadWaiters) -> None:
        waiters.resolve(ADAPTER_A)
    run_scenario(scenario)


def test_cancelled_waiter_does_not_affect_the_others() -> None:
    async def scenario(waiters: ResourceLoadWaiters) -> None:
        leaves, stays = await start_waiting(waiters, ADAPTER_A, ADAPTER_A)
        leaves.cancel()
        await asyncio.wait([leaves])
        waiters.resolve(ADAPTER_A)
        assert await stays == ""
    run_scenario(scenario)


def test_waiters_fail_when_the_server_shuts_down() -> None:
    async def scenario(waiters: ResourceLoadWaiters) -> None:
        [task] = await start_waiting(waiters, ADAPTER_A)
        waiters.fail_all("the server is shutting down")
        with pytest.raises(NotReady, match="shutting down"):
            await task
        assert waiters.awaited_resources == []
    run_scenario(scenario)
