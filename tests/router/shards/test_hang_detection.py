"""Watches of a shard's process, beside a scripted health check."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import grpc
import pytest

from router.shards import hang_detection
from router.shards.hang_detection import wait_for_outcome, wait_until_unresponsive

Result = TypeVar("Result")


class ScriptedChannel:
    """Channel whose health checks are answered if `responds`; `num_checks` counts them."""

    def __init__(self, *, responds: bool) -> None:
        self.responds, self.num_checks = responds, 0

    def unary_unary(self, _: str) -> Callable[..., Coroutine[Any, Any, bytes]]:
        async def check(_: bytes, timeout: float) -> bytes:
            self.num_checks += 1
            if self.responds:
                return b""
            await asyncio.sleep(timeout)
            raise grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, grpc.aio.Metadata(), grpc.aio.Metadata())
        return check


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"CHECK_SECONDS": 0.02, "MAX_LATENESS_SECONDS": 0.1, "GRACE_SECONDS": 0.1}.items():
        monkeypatch.setattr(hang_detection, name, seconds)


def run_in_loop(coroutine: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(coroutine)


def stand_still(seconds: float) -> None:
    """Block this process, as if it was stopped."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def is_given_up(channel: ScriptedChannel, scenario: Callable[[], Coroutine[Any, Any, None]],
                      timeout: float) -> bool:
    """Return whether the watch has ended when the scenario has."""
    watch = asyncio.create_task(wait_until_unresponsive(channel, timeout))  # type: ignore[arg-type]  # a double
    await scenario()
    has_ended = watch.done()
    watch.cancel()
    await asyncio.wait([watch])
    return has_ended


def test_process_that_does_not_respond_is_given_up_after_two_checks() -> None:
    channel = ScriptedChannel(responds=False)
    run_in_loop(wait_until_unresponsive(channel, 0.1))  # type: ignore[arg-type]  # a double
    assert channel.num_checks == 2


def test_process_that_responds_is_not_given_up() -> None:
    async def sleep_a_while() -> None:
        await asyncio.sleep(0.3)
    channel = ScriptedChannel(responds=True)
    assert not run_in_loop(is_given_up(channel, sleep_a_while, 0.02))
    assert channel.num_checks > 3


def test_process_that_responds_again_is_not_given_up() -> None:
    channel = ScriptedChannel(responds=False)

    async def respond_later() -> None:
        await asyncio.sleep(0.1)  # in the first check
        channel.responds = True
        await asyncio.sleep(0.6)
    assert not run_in_loop(is_given_up(channel, respond_later, 0.5))


def test_time_in_which_the_router_stood_still_does_not_count_for_the_process() -> None:
    """A router that was paused for 35 seconds killed healthy shards when it went on."""
    channel = ScriptedChannel(responds=False)

    async def scenario() -> None:
        for _ in range(3):
            await asyncio.sleep(0.01)
            stand_still(0.3)  # each check is late
        channel.responds = True
        await asyncio.sleep(0.1)
    assert not run_in_loop(is_given_up(channel, scenario, 0.05))


def test_answer_ends_the_wait() -> None:
    async def main() -> bool:
        outcome: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.05, outcome.set_result, "an answer")
        return await wait_for_outcome(outcome, 60.0)
    assert run_in_loop(main())


def test_answer_that_does_not_come_is_given_up() -> None:
    async def main() -> bool:
        return await wait_for_outcome(asyncio.get_running_loop().create_future(), 0.1)
    assert not run_in_loop(main())


def test_answer_that_came_just_before_the_time_limit_counts() -> None:
    async def main() -> bool:
        outcome: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.02, outcome.set_result, "an answer")
        return await wait_for_outcome(outcome, 0.0)
    assert run_in_loop(main())


def test_time_in_which_the_router_itself_stood_still_does_not_count() -> None:
    """A router that was paused for 35 seconds killed healthy shards when it went on."""
    async def main() -> bool:
        outcome: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, stand_still, 1.0)
        asyncio.get_running_loop().call_later(1.05, outcome.set_result, "an answer that came meanwhile")
        return await wait_for_outcome(outcome, 0.5)
    assert run_in_loop(main())
