"""Watch of an answer that takes long, beside a scripted health check."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import pytest

from router.shards import slow_answer_watch
from router.shards.slow_answer_watch import find_timeout_reason

TIMEOUT = 0.5


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
    for name, seconds in {"FIRST_CHECK_SECONDS": 0.0, "CHECK_TIMEOUT_SECONDS": 0.05, "CHECK_PAUSE_SECONDS": 0.02,
                          "MAX_LATENESS_SECONDS": 0.1, "GRACE_SECONDS": 0.1}.items():
        monkeypatch.setattr(slow_answer_watch, name, seconds)


def watch(channel: ScriptedChannel, scenario: Callable[["asyncio.Future[object]"], Coroutine[Any, Any, None]],
          timeout: float = TIMEOUT) -> str:
    async def main() -> str:
        outcome: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(scenario(outcome))
        reason = await find_timeout_reason(channel, outcome, timeout)  # type: ignore[arg-type]  # a double
        await task
        return reason
    return asyncio.run(main())


async def do_nothing(_: "asyncio.Future[object]") -> None:
    pass


def test_process_that_does_not_respond_is_given_up_after_two_checks() -> None:
    channel = ScriptedChannel(responds=False)
    assert watch(channel, do_nothing).startswith("the process does not respond, and did not answer within 0.1 seconds")
    assert channel.num_checks == 2


def test_process_that_responds_has_all_of_its_time() -> None:
    channel = ScriptedChannel(responds=True)
    assert watch(channel, do_nothing) == "no answer within 0.5 seconds"
    assert channel.num_checks > 5


def test_answer_ends_the_watch() -> None:
    async def answer_soon(outcome: "asyncio.Future[object]") -> None:
        await asyncio.sleep(0.1)
        outcome.set_result("an answer")
    assert watch(ScriptedChannel(responds=True), answer_soon) == ""


def test_answer_that_came_just_before_the_time_limit_counts() -> None:
    async def answer_late(outcome: "asyncio.Future[object]") -> None:
        await asyncio.sleep(0.02)
        outcome.set_result("an answer")
    assert watch(ScriptedChannel(responds=True), answer_late, timeout=0.0) == ""


def test_process_that_responds_again_is_not_given_up() -> None:
    channel = ScriptedChannel(responds=False)

    async def respond_later(_: "asyncio.Future[object]") -> None:
        await asyncio.sleep(0.03)
        channel.responds = True
    assert watch(channel, respond_later) == "no answer within 0.5 seconds"


def test_time_in_which_the_router_itself_stood_still_does_not_count() -> None:
    """A router that was paused for 35 seconds killed healthy shards when it went on."""
    async def stand_still(outcome: "asyncio.Future[object]") -> None:
        await asyncio.sleep(0.06)
        deadline = asyncio.get_running_loop().time() + 2 * TIMEOUT
        while asyncio.get_running_loop().time() < deadline:  # as if the process was stopped
            pass
        await asyncio.sleep(0.03)
        outcome.set_result("an answer that came meanwhile")
    assert watch(ScriptedChannel(responds=False), stand_still) == ""
