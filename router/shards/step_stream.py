"""Long-lived call of `Steps` to one rank: messages are sent, and outcomes returned, in the order of `send`. When it
breaks, all pending messages and all that are sent later get an RpcFailure as their outcome."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple

import grpc

from router.shards.hang_detection import FIRST_CHECK_SECONDS, wait_for_outcome
from router.shards.rank_address import Channel
from shard.pb import shard_pb2 as pb

STATUS_BY_CODE = {code.value[0]: code for code in grpc.StatusCode}
TIMEOUT_STATUS = grpc.StatusCode.DEADLINE_EXCEEDED


class RpcFailure(NamedTuple):
    """Error that came instead of an answer."""

    code: grpc.StatusCode
    reason: str


DISCONNECTED_STATUS = grpc.StatusCode.UNAVAILABLE
STREAM_CLOSED = RpcFailure(DISCONNECTED_STATUS, "the shard hung up")
EMPTY_OUTCOME = RpcFailure(grpc.StatusCode.FAILED_PRECONDITION, "an outcome that says nothing")
UNEXPECTED_OUTCOME = RpcFailure(grpc.StatusCode.FAILED_PRECONDITION, "an outcome that nobody waits for")
RpcOutcome = Any  # the verb's answer, or RpcFailure


class StepStreamClient:
    """The `Steps` call to one rank: messages are answered in the order in which they were sent."""

    def __init__(self, channel: Channel) -> None:
        method = channel.stream_stream("/weft.shard.Shard/Steps", response_deserializer=pb.StepOutcome.FromString)
        self._call = method()
        self._send_queue: asyncio.Queue[bytes] = asyncio.Queue()
        # the outcomes that are waited for, in the order of their messages, with their timeouts
        self._pending_outcomes: deque[tuple[asyncio.Future[RpcOutcome], asyncio.TimerHandle]] = deque()
        self._failure: RpcFailure | None = None
        self._watch_tasks: set[asyncio.Task[None]] = set()  # of answers that take long
        self._tasks = [asyncio.create_task(self._write_messages()), asyncio.create_task(self._read_outcomes())]

    def send(self, message: bytes, timeout: float) -> "asyncio.Future[RpcOutcome]":
        """Queue a message for writing. The future never raises; its result may be an RpcFailure."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[RpcOutcome] = loop.create_future()
        if self._failure is not None:
            outcome.set_result(self._failure)
            return outcome
        self._send_queue.put_nowait(message)
        self._pending_outcomes.append((outcome, loop.call_later(min(timeout, FIRST_CHECK_SECONDS), self._watch_answer,
                                                                outcome, timeout)))
        return outcome

    def _watch_answer(self, outcome: "asyncio.Future[RpcOutcome]", timeout: float) -> None:
        async def watch() -> None:
            if not await wait_for_outcome(outcome, timeout - FIRST_CHECK_SECONDS):
                outcome.set_result(RpcFailure(TIMEOUT_STATUS, f"no answer within {timeout:.1f} seconds"))
        task = asyncio.create_task(watch())
        self._watch_tasks.add(task)
        task.add_done_callback(self._watch_tasks.discard)

    async def close(self) -> None:
        tasks = [*self._tasks, *self._watch_tasks]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._call.cancel()
        self.fail(STREAM_CLOSED)

    async def _write_messages(self) -> None:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the reader gets the error too
            while True:
                await self._call.write(await self._send_queue.get())

    async def _read_outcomes(self) -> None:
        failure = STREAM_CLOSED
        try:
            while (outcome := await self._call.read()) is not grpc.aio.EOF:
                if not self._pending_outcomes:
                    failure = UNEXPECTED_OUTCOME  # outcomes can no longer be matched with messages
                    break
                self._resolve_oldest(unpack_outcome(outcome))
        except grpc.aio.AioRpcError as error:
            # The same status for all: the error of a single message is sent as its outcome and does not end the call.
            failure = RpcFailure(DISCONNECTED_STATUS, f"{error.code().name.lower()}: {error.details()}")
        self.fail(failure)

    def fail(self, failure: RpcFailure) -> None:
        """Make this failure the outcome of all pending messages and all that are sent later."""
        self._failure = failure
        while self._pending_outcomes:
            self._resolve_oldest(failure)

    def _resolve_oldest(self, outcome: RpcOutcome) -> None:
        future, timer = self._pending_outcomes.popleft()
        timer.cancel()
        if not future.done():
            future.set_result(outcome)


def unpack_outcome(outcome: pb.StepOutcome) -> RpcOutcome:
    kind = outcome.WhichOneof("outcome")
    if kind == "trouble":
        return RpcFailure(STATUS_BY_CODE.get(outcome.trouble.code, grpc.StatusCode.UNKNOWN), outcome.trouble.reason)
    return EMPTY_OUTCOME if kind is None else getattr(outcome, kind)
