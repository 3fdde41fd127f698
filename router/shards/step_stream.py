"""Long-lived call of `Steps` to one rank: messages are sent, and outcomes returned, in the order of `send`.

When the call breaks, all pending messages and all that are sent later get a Trouble as their outcome.
"""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple

import grpc

from shard.pb import shard_pb2 as pb

STATUS = {code.value[0]: code for code in grpc.StatusCode}
OVERDUE = grpc.StatusCode.DEADLINE_EXCEEDED


class Trouble(NamedTuple):
    """Error that came instead of an answer."""

    code: grpc.StatusCode
    reason: str


GONE = grpc.StatusCode.UNAVAILABLE
BROKEN = Trouble(GONE, "the shard hung up")
EMPTY = Trouble(grpc.StatusCode.FAILED_PRECONDITION, "an outcome that says nothing")
UNASKED = Trouble(grpc.StatusCode.FAILED_PRECONDITION, "an outcome that nobody waits for")
Outcome = Any  # the verb's answer, or Trouble


class Line:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        method = channel.stream_stream("/weft.shard.Shard/Steps", response_deserializer=pb.StepOutcome.FromString)
        self._call = method()
        self._leaving: asyncio.Queue[bytes] = asyncio.Queue()
        self._awaited: deque[asyncio.Future[Outcome]] = deque()
        self._broken: Trouble | None = None
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]

    def send(self, message: bytes, timeout: float) -> "asyncio.Future[Outcome]":
        """Queue a message for writing. The future never raises; its result may be a Trouble."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Outcome] = loop.create_future()
        if self._broken is not None:
            outcome.set_result(self._broken)
            return outcome
        self._awaited.append(outcome)
        self._leaving.put_nowait(message)
        overdue = loop.call_later(timeout, settle, outcome, Trouble(OVERDUE, f"no answer within {timeout:.1f} seconds"))
        outcome.add_done_callback(lambda _: overdue.cancel())
        return outcome

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self._call.cancel()
        self._break(BROKEN)

    async def _write(self) -> None:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the reader gets the error too
            while True:
                await self._call.write(await self._leaving.get())

    async def _read(self) -> None:
        why = BROKEN
        try:
            while (outcome := await self._call.read()) is not grpc.aio.EOF:
                if not self._awaited:
                    why = UNASKED  # outcomes can no longer be matched with messages
                    break
                settle(self._awaited.popleft(), opened(outcome))
        except grpc.aio.AioRpcError as error:
            # GONE for every status: the error of a single message is sent as its outcome and does not end the call.
            why = Trouble(GONE, f"{error.code().name.lower()}: {error.details()}")
        self._break(why)

    def _break(self, why: Trouble) -> None:
        self._broken = why
        while self._awaited:
            settle(self._awaited.popleft(), why)


def opened(outcome: pb.StepOutcome) -> Outcome:
    kind = outcome.WhichOneof("outcome")
    if kind == "trouble":
        return Trouble(STATUS.get(outcome.trouble.code, grpc.StatusCode.UNKNOWN), outcome.trouble.reason)
    return EMPTY if kind is None else getattr(outcome, kind)


def settle(future: "asyncio.Future[Outcome]", outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)
