"""Detection of a hung shard: an answer that takes too long, and a process that does not respond, since it is stopped or
hangs as a whole.

Time in which this process itself stood still, such as on a paused machine, does not count."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from router.shards.rank_address import Channel

CHECK_METHOD = "/grpc.health.v1.Health/Check"
EMPTY_REQUEST = b""  # a serialized HealthCheckRequest without a service name
FIRST_CHECK_SECONDS = 3.0  # after the message was sent; most answers come earlier
CHECK_SECONDS = 1.0  # between looks at the clock
PAUSE_SHARE, CHECK_SHARE = 0.2, 0.4  # of the response timeout: a pause after a response, then two checks without one
MAX_LATENESS_SECONDS = 1.0  # by which a timer may be late while this process runs
GRACE_SECONDS = 0.5  # for an answer that came while this process stood still until the end of the time limit


async def wait_for_outcome(outcome: "asyncio.Future[object]", timeout: float) -> bool:
    """Wait at most `timeout` seconds for an outcome; return whether it came."""
    loop, seconds_left = asyncio.get_running_loop(), timeout
    while seconds_left > 0 and not outcome.done():
        started_at, seconds = loop.time(), min(CHECK_SECONDS, seconds_left)
        await asyncio.wait([outcome], timeout=seconds)
        seconds_left -= min(loop.time() - started_at, seconds + MAX_LATENESS_SECONDS)
    if not outcome.done():
        await asyncio.wait([outcome], timeout=GRACE_SECONDS)
    return outcome.done()


async def wait_until_unresponsive(channel: Channel, timeout: float) -> None:
    """Wait until the process has not responded for `timeout` seconds. It responds in a thread of its own, however long
    its steps take."""
    loop, check = asyncio.get_running_loop(), channel.unary_unary(CHECK_METHOD)
    num_unanswered, check_seconds = 0, CHECK_SHARE * timeout
    while num_unanswered < 2:
        if not num_unanswered:
            await asyncio.sleep(PAUSE_SHARE * timeout)
        started_at = loop.time()
        if await responds_to_health_check(check, check_seconds):
            num_unanswered = 0
        elif loop.time() - started_at <= check_seconds + MAX_LATENESS_SECONDS:  # else this process stood still
            num_unanswered += 1


async def responds_to_health_check(check: Callable[..., Any], timeout: float) -> bool:
    """Return whether the process responds, if only with an error."""
    try:
        await check(EMPTY_REQUEST, timeout=timeout)
    except grpc.aio.AioRpcError as error:
        return error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
    return True
