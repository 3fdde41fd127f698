"""Watch of an answer that takes long: it ends with the answer's time limit, or earlier if the process does not respond
at all, because it is stopped or hangs as a whole.

Time in which this process itself stood still, such as on a paused machine, does not count."""

import asyncio

import grpc

CHECK_METHOD = "/grpc.health.v1.Health/Check"
EMPTY_REQUEST = b""  # a serialized HealthCheckRequest without a service name
FIRST_CHECK_SECONDS = 3.0  # after the message was sent
CHECK_TIMEOUT_SECONDS = 2.5
CHECK_PAUSE_SECONDS = 1.0
GRACE_SECONDS = 0.5  # for an answer that came while this process stood still until the end of the time limit
MAX_UNANSWERED_CHECKS = 2  # in a row
MAX_LATENESS_SECONDS = 1.0  # by which a timer may be late while this process runs


async def find_timeout_reason(channel: grpc.aio.Channel, outcome: "asyncio.Future[object]", timeout: float) -> str:
    """Return why no answer is to be expected any more, or an empty string once there is one. The message was sent
    FIRST_CHECK_SECONDS ago, or `timeout` if that is less."""
    loop = asyncio.get_running_loop()
    check = channel.unary_unary(CHECK_METHOD)
    seconds_left, num_unanswered = max(0.0, timeout - FIRST_CHECK_SECONDS), 0
    while seconds_left > 0:
        started_at = loop.time()
        is_answered = await is_check_answered(check, min(CHECK_TIMEOUT_SECONDS, seconds_left))
        if is_answered and not outcome.done():
            await asyncio.wait([outcome], timeout=min(CHECK_PAUSE_SECONDS, seconds_left))
        if outcome.done():
            return ""
        seconds, nominal_seconds = loop.time() - started_at, CHECK_TIMEOUT_SECONDS + CHECK_PAUSE_SECONDS
        if seconds > nominal_seconds + MAX_LATENESS_SECONDS:  # this process stood still
            seconds_left -= nominal_seconds
            continue
        seconds_left -= seconds
        num_unanswered = 0 if is_answered else num_unanswered + 1
        if num_unanswered == MAX_UNANSWERED_CHECKS:
            return f"the process does not respond, and did not answer within {timeout - seconds_left:.1f} seconds"
    await asyncio.wait([outcome], timeout=GRACE_SECONDS)
    return "" if outcome.done() else f"no answer within {timeout:.1f} seconds"


async def is_check_answered(check: grpc.aio.UnaryUnaryMultiCallable, timeout: float) -> bool:
    """Return whether the process responds, if only with an error."""
    try:
        await check(EMPTY_REQUEST, timeout=timeout)
    except grpc.aio.AioRpcError as error:
        return error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
    return True
