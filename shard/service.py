"""The shard's side of the contract: order and epochs of messages, and what an error is called on the wire.

A message that is next in its epoch is queued for the compute thread at once, an early one is held back until those
before it are there. The one compute thread lives as long as the service; once it refused or failed a message it refuses
whatever the epoch still brings. Works for any worker and knows nothing of what a message means to it.
"""
# ruff: noqa: N802 - gRPC names a method as the contract does

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import grpc

from shard.errors import Malformed, Refused
from shard.pb import shard_pb2 as pb
from shard.pb import shard_pb2_grpc
from shard.steplog import RunStep, untimed

Code = grpc.StatusCode
Answer = TypeVar("Answer")
Ordered = pb.PrefillRequest | pb.DecodeRequest | pb.FilterRequest | pb.ConcatRequest

logger = logging.getLogger(__name__)


class Context(Protocol):
    """The part of grpc.aio.ServicerContext that is used."""

    async def abort(self, code: Any, details: str) -> NoReturn: ...


class Worker(Protocol):
    """What runs the steps. It raises Malformed or Refused before anything changed, anything else when a step failed.

    `info` is called at any time, `load` and `unload` beside the steps, `close` once, to wake up whatever waits.
    """

    def info(self) -> pb.InfoAnswer: ...
    def warmup(self, request: pb.WarmupRequest) -> pb.WarmupAnswer: ...
    def reset(self, request: pb.ResetRequest) -> pb.ResetAnswer: ...
    def prefill(self, request: pb.PrefillRequest) -> pb.StepAnswer: ...
    def decode(self, request: pb.DecodeRequest) -> pb.StepAnswer: ...
    def filter(self, request: pb.FilterRequest) -> pb.Acknowledgement: ...
    def concat(self, request: pb.ConcatRequest) -> pb.Acknowledgement: ...
    def load(self, request: pb.LoadRequest) -> pb.LoadAnswer: ...
    def unload(self, request: pb.UnloadRequest) -> pb.UnloadAnswer: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is sent instead of an answer."""

    code: Any
    reason: str


@dataclass(slots=True)
class Arrival(Generic[Answer]):
    """A message that is there: what it calls, and the answer or trouble that it gets. It outlives a caller that hangs
    up, since the other ranks apply it too."""

    call: Callable[[], Answer]
    outcome: "asyncio.Future[Answer | Trouble]"


@dataclass(slots=True)
class Epoch:
    number: int
    lost: str = ""  # why nothing more is queued; written by the event loop
    failed: str = ""  # why nothing more is applied; written by the compute thread
    next: int = 1  # the lowest order that is not queued yet
    early: dict[int, Arrival[Any]] = field(default_factory=dict)  # held back until their turn
    refused: set[int] = field(default_factory=set)  # orders that came after the end
    gap: "asyncio.TimerHandle | None" = None
    gap_at: int = 0  # the order that the timer waits for

    @property
    def end(self) -> str:
        return self.failed or self.lost

    def used(self, order: int) -> bool:
        return order < self.next or order in self.early or order in self.refused


def on_time(_epoch: int, _order: int) -> float:
    return 0.0


class ShardService(shard_pb2_grpc.ShardServicer):
    def __init__(self, worker: Worker, gap_timeout: float, lateness: Callable[[int, int], float] = on_time,
                 run_step: RunStep = untimed) -> None:
        """`lateness` says by how many seconds the answer to a step, given by epoch and order, is kept back. `run_step`
        calls the verb with the request, in the compute thread."""
        self.worker = worker
        self.calls: Counter[str] = Counter()
        self._gap_timeout = gap_timeout
        self._lateness = lateness
        self._run_step = run_step
        self._epoch = Epoch(0, lost="there was no Reset yet")
        self._compute = ThreadPoolExecutor(1, "compute")
        self._loading = ThreadPoolExecutor(1, "loading")
        self._calling: set[asyncio.Task[Any]] = set()

    def stop(self) -> None:
        """Let what is under way come to its end soon, and nothing new begin."""
        self._end(self._epoch, "the shard stops")
        self.worker.close()

    def close(self) -> None:
        """Give up what is queued and wait for the threads."""
        for executor in (self._compute, self._loading):
            executor.shutdown(cancel_futures=True)

    async def silence(self) -> None:
        """Every call has its end."""
        if self._calling:
            await asyncio.wait(self._calling)

    # -- the calls

    async def Info(self, request: pb.InfoRequest, context: Context) -> pb.InfoAnswer:  # noqa: ARG002
        self.calls["Info"] += 1
        answer = self.worker.info()
        answer.epoch = self._epoch.number  # begun, though its Reset may still wait for its turn
        return answer

    async def Warmup(self, request: pb.WarmupRequest, context: Context) -> pb.WarmupAnswer:
        self.calls["Warmup"] += 1
        return await self._beside(self._compute, partial(self.worker.warmup, request), context)

    async def Reset(self, request: pb.ResetRequest, context: Context) -> pb.ResetAnswer:
        self.calls["Reset"] += 1
        if request.epoch <= self._epoch.number:
            await context.abort(Code.FAILED_PRECONDITION, f"epoch {self._epoch.number} is in force, {request.epoch} "
                                                          f"is not higher")
        self._end(self._epoch, "another epoch was started")
        self._epoch = Epoch(request.epoch)
        arrival = arrive(partial(self.worker.reset, request))
        self._queue(self._epoch, arrival)
        return await self._answer(arrival, context)

    async def Prefill(self, request: pb.PrefillRequest, context: Context) -> pb.StepAnswer:
        self.calls["Prefill"] += 1
        return await self._step(request, self.worker.prefill, context)

    async def Decode(self, request: pb.DecodeRequest, context: Context) -> pb.StepAnswer:
        self.calls["Decode"] += 1
        return await self._step(request, self.worker.decode, context)

    async def Filter(self, request: pb.FilterRequest, context: Context) -> pb.Acknowledgement:
        self.calls["Filter"] += 1
        return await self._answer(self._take(request, self.worker.filter), context)

    async def Concat(self, request: pb.ConcatRequest, context: Context) -> pb.Acknowledgement:
        self.calls["Concat"] += 1
        return await self._answer(self._take(request, self.worker.concat), context)

    async def Load(self, request: pb.LoadRequest, context: Context) -> pb.LoadAnswer:
        self.calls["Load"] += 1
        await self._check_epoch(request.epoch, context)
        return await self._beside(self._loading, partial(self.worker.load, request), context)

    async def Unload(self, request: pb.UnloadRequest, context: Context) -> pb.UnloadAnswer:
        self.calls["Unload"] += 1
        await self._check_epoch(request.epoch, context)
        return await self._beside(self._loading, partial(self.worker.unload, request), context)

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedAnswer:  # noqa: ARG002
        self.calls["Embed"] += 1
        await context.abort(Code.UNIMPLEMENTED, "this shard does not embed")

    async def _answer(self, arrival: Arrival[Answer], context: Context) -> Answer:
        call = asyncio.current_task()
        assert call is not None
        self._calling.add(call)
        call.add_done_callback(self._calling.discard)
        outcome = await asyncio.shield(arrival.outcome)
        if isinstance(outcome, Trouble):
            await context.abort(outcome.code, outcome.reason)
        return outcome

    # -- messages with an order

    async def _step(self, request: Any, verb: Callable[[Any], pb.StepAnswer], context: Context) -> pb.StepAnswer:
        done: pb.StepAnswer = await self._answer(self._take(request, partial(self._run_step, verb)), context)
        if late := self._lateness(request.epoch, request.order):
            await asyncio.sleep(late)
        return done

    def _take(self, request: Ordered, verb: Callable[[Any], Answer]) -> Arrival[Answer]:
        epoch, arrival = self._epoch, arrive(partial(verb, request))
        if request.epoch != epoch.number:
            trouble(arrival, Code.FAILED_PRECONDITION, self._other_epoch(request.epoch))
        elif not request.order:
            trouble(arrival, Code.INVALID_ARGUMENT, "orders are counted from 1")
        elif epoch.used(request.order):
            trouble(arrival, Code.ALREADY_EXISTS, f"message {request.order} was taken before")
        else:
            epoch.early[request.order] = arrival
            self._go_on(epoch)
        return arrival

    def _go_on(self, epoch: Epoch) -> None:
        """Queue what is next, and hold back or refuse the rest."""
        while not epoch.end and epoch.next in epoch.early:
            self._queue(epoch, epoch.early.pop(epoch.next))
            epoch.next += 1
        if epoch.end:
            self._refuse_early(epoch)
        self._watch_gap(epoch)

    def _queue(self, epoch: Epoch, arrival: Arrival[Any]) -> None:
        job = asyncio.get_running_loop().run_in_executor(self._compute, apply, epoch, arrival.call)
        job.add_done_callback(partial(self._applied, epoch, arrival))

    def _applied(self, epoch: Epoch, arrival: Arrival[Any], job: "asyncio.Future[Any]") -> None:
        settle(arrival, job)
        if epoch.failed:
            self._go_on(epoch)

    def _watch_gap(self, epoch: Epoch) -> None:
        """The time of a missing message runs from the first later one on, however many follow."""
        missing = epoch.next if epoch.early else 0
        if missing != epoch.gap_at and epoch.gap is not None:
            epoch.gap.cancel()
        if missing != epoch.gap_at and missing:
            late = f"message {missing} did not arrive within {self._gap_timeout} seconds of a later one"
            epoch.gap = asyncio.get_running_loop().call_later(self._gap_timeout, self._end, epoch, late)
        epoch.gap_at = missing

    def _end(self, epoch: Epoch, reason: str) -> None:
        """Nothing more is queued; what was, is still applied, since the other ranks apply it too."""
        epoch.lost = epoch.lost or reason
        self._go_on(epoch)

    def _refuse_early(self, epoch: Epoch) -> None:
        for arrival in epoch.early.values():
            trouble(arrival, Code.FAILED_PRECONDITION, f"epoch {epoch.number} is over: {epoch.end}")
        epoch.refused.update(epoch.early)
        epoch.early.clear()

    # -- messages without

    async def _beside(self, executor: ThreadPoolExecutor, call: Callable[[], Answer], context: Context) -> Answer:
        arrival = arrive(call)
        job = asyncio.get_running_loop().run_in_executor(executor, attempt, call)
        job.add_done_callback(partial(settle, arrival))
        return await self._answer(arrival, context)

    async def _check_epoch(self, number: int, context: Context) -> None:
        if number != self._epoch.number:
            await context.abort(Code.FAILED_PRECONDITION, self._other_epoch(number))

    def _other_epoch(self, number: int) -> str:
        return f"the message is of epoch {number}, in force is {self._epoch.number}"


def arrive(call: Callable[[], Answer]) -> Arrival[Answer]:
    return Arrival(call, asyncio.get_running_loop().create_future())


def settle(arrival: Arrival[Any], job: "asyncio.Future[Any]") -> None:
    arrival.outcome.set_result(Trouble(Code.UNAVAILABLE, "the shard stops") if job.cancelled() else job.result())


def trouble(arrival: Arrival[Any], code: Any, reason: str) -> None:
    arrival.outcome.set_result(Trouble(code, reason))


def apply(epoch: Epoch, call: Callable[[], Answer]) -> Answer | Trouble:
    """In the compute thread, and so in order."""
    if epoch.failed:
        return Trouble(Code.FAILED_PRECONDITION, f"epoch {epoch.number} is over: {epoch.failed}")
    outcome = attempt(call)
    if isinstance(outcome, Trouble):
        epoch.failed = outcome.reason
    return outcome


def attempt(call: Callable[[], Answer]) -> Answer | Trouble:
    try:
        return call()
    except Malformed as error:
        return Trouble(Code.INVALID_ARGUMENT, str(error))
    except Refused as error:
        return Trouble(Code.FAILED_PRECONDITION, str(error))
    except Exception as error:
        logger.exception("a step failed")
        return Trouble(Code.INTERNAL, f"{type(error).__name__}: {error}")
