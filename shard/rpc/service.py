"""The gRPC service of a shard: the calls of the contract, and the status codes of errors.

Messages with an order pass through `ordering.py`, whether they arrive as separate calls or on a `Steps` stream. The one
compute thread lives as long as the service.
"""
# ruff: noqa: N802 - gRPC names a method as the contract does

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol

from shard.deferred import Later
from shard.pb import shard_pb2 as pb
from shard.pb import shard_pb2_grpc
from shard.rpc.ordering import Answer, Arrival, Code, Orders, Trouble, arrive, attempt, settle, trouble
from shard.rpc.step_stream import Line
from shard.telemetry.startup_progress import READY, OnProgress, untold
from shard.telemetry.step_log import RunStep, untimed


class Context(Protocol):
    """The part of grpc.aio.ServicerContext that is used."""

    async def abort(self, code: Any, details: str) -> NoReturn: ...


class Worker(Protocol):
    """Interface of workers, which run the steps. A worker raises Malformed or Refused before anything has changed, and
    anything else if a step failed. A decode may return a `Later`.

    `info` is called at any time, `load` and `unload` while steps run, `close` once, to wake up a call that waits.
    """

    def info(self) -> pb.InfoAnswer: ...
    def warmup(self, request: pb.WarmupRequest) -> pb.WarmupAnswer: ...
    def reset(self, request: pb.ResetRequest) -> pb.ResetAnswer: ...
    def prefill(self, request: pb.PrefillRequest) -> pb.StepAnswer: ...
    def decode(self, request: pb.DecodeRequest) -> pb.StepAnswer | Later[pb.StepAnswer]: ...
    def filter(self, request: pb.FilterRequest) -> pb.Acknowledgement: ...
    def concat(self, request: pb.ConcatRequest) -> pb.Acknowledgement: ...
    def embed(self, request: pb.EmbedRequest) -> pb.EmbedAnswer: ...
    def load(self, request: pb.LoadRequest) -> pb.LoadAnswer: ...
    def unload(self, request: pb.UnloadRequest) -> pb.UnloadAnswer: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Taken:
    """Message received on a `Steps` stream."""

    arrival: Arrival[Any]
    step: pb.PrefillRequest | pb.DecodeRequest | pb.EmbedRequest | None  # None: the message runs no step


def on_time(_epoch: int, _order: int) -> float:
    return 0.0


class ShardService(shard_pb2_grpc.ShardServicer):
    """The contract's calls on one worker."""

    def __init__(self, worker: Worker, gap_timeout: float, lateness: Callable[[int, int], float] = on_time,
                 run_step: RunStep = untimed, compute: ThreadPoolExecutor | None = None, *,
                 on_progress: OnProgress = untold) -> None:
        """Create the service. `lateness` returns by how many seconds the answer to a step, given by epoch and order, is
        delayed. `run_step` calls the verb with the request, in the compute thread: that of `compute`, in which the
        worker was made if it must be made where it computes. The service owns `compute` from now on. `on_progress` is
        called when the shard is warm."""
        self.worker = worker
        self.calls: Counter[str] = Counter()
        self._lateness = lateness
        self._run_step = run_step
        self._on_progress = on_progress
        self._compute = compute or ThreadPoolExecutor(1, "compute")
        self._waiting = ThreadPoolExecutor(1, "waiting")
        self._orders = Orders(self._compute, self._waiting, gap_timeout)
        self._loading = ThreadPoolExecutor(1, "loading")
        self._calling: set[asyncio.Task[Any]] = set()
        self._lines: set[Line[Taken]] = set()

    def stop(self) -> None:
        """Begin no new work, and let the calls under way end soon."""
        self._orders.end("the shard stops")
        self.worker.close()
        for line in self._lines:
            line.end()

    def close(self) -> None:
        """Cancel queued messages and wait for the threads."""
        for executor in (self._compute, self._loading):
            executor.shutdown(cancel_futures=True)
        self._waiting.shutdown()  # each of its jobs finds that the compute thread has been shut down

    async def silence(self) -> None:
        """Wait until every call has ended."""
        if self._calling:
            await asyncio.wait(self._calling)

    # -- the calls

    async def Info(self, request: pb.InfoRequest, context: Context) -> pb.InfoAnswer:  # noqa: ARG002
        self.calls["Info"] += 1
        answer = self.worker.info()
        answer.epoch = self._orders.epoch.number  # current, though its Reset may still be queued
        return answer

    async def Warmup(self, request: pb.WarmupRequest, context: Context) -> pb.WarmupAnswer:
        self.calls["Warmup"] += 1
        answer = await self._beside(self._compute, partial(self.worker.warmup, request), context)
        self._on_progress(READY, 0, 0)
        return answer

    async def Reset(self, request: pb.ResetRequest, context: Context) -> pb.ResetAnswer:
        self.calls["Reset"] += 1
        number = self._orders.epoch.number
        if request.epoch <= number:
            await context.abort(Code.FAILED_PRECONDITION, f"epoch {number} is in force, {request.epoch} is not higher")
        arrival = self._orders.begin(request.epoch, partial(self.worker.reset, request))
        return await self._answer(arrival, context)

    async def Prefill(self, request: pb.PrefillRequest, context: Context) -> pb.StepAnswer:
        self.calls["Prefill"] += 1
        return await self._step(request, self.worker.prefill, context)

    async def Decode(self, request: pb.DecodeRequest, context: Context) -> pb.StepAnswer:
        self.calls["Decode"] += 1
        return await self._step(request, self.worker.decode, context)

    async def Filter(self, request: pb.FilterRequest, context: Context) -> pb.Acknowledgement:
        self.calls["Filter"] += 1
        return await self._answer(self._orders.take(request, self.worker.filter), context)

    async def Concat(self, request: pb.ConcatRequest, context: Context) -> pb.Acknowledgement:
        self.calls["Concat"] += 1
        return await self._answer(self._orders.take(request, self.worker.concat), context)

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedAnswer:
        self.calls["Embed"] += 1
        return await self._step(request, self.worker.embed, context)

    async def Steps(self, messages: AsyncIterator[pb.StepMessage], context: Any) -> None:
        line = Line(self._take_message, self._outcome)
        self._lines.add(line)
        try:
            self._note_call()
            await line.serve(messages, context)
        finally:
            self._lines.discard(line)

    async def Load(self, request: pb.LoadRequest, context: Context) -> pb.LoadAnswer:
        self.calls["Load"] += 1
        await self._check_epoch(request.epoch, context)
        return await self._beside(self._loading, partial(self.worker.load, request), context)

    async def Unload(self, request: pb.UnloadRequest, context: Context) -> pb.UnloadAnswer:
        self.calls["Unload"] += 1
        await self._check_epoch(request.epoch, context)
        return await self._beside(self._loading, partial(self.worker.unload, request), context)

    def _note_call(self) -> None:
        call = asyncio.current_task()
        assert call is not None
        self._calling.add(call)
        call.add_done_callback(self._calling.discard)

    async def _answer(self, arrival: Arrival[Answer], context: Context) -> Answer:
        self._note_call()
        outcome = await asyncio.shield(arrival.outcome)
        if isinstance(outcome, Trouble):
            await context.abort(outcome.code, outcome.reason)
        return outcome

    # -- messages with an order

    async def _step(self, request: Any, verb: Callable[[Any], Answer | Later[Answer]], context: Context) -> Answer:
        done: Answer = await self._answer(self._orders.take(request, partial(self._run_step, verb)), context)
        if late := self._lateness(request.epoch, request.order):
            await asyncio.sleep(late)
        return done

    def _take_message(self, message: pb.StepMessage) -> Taken:
        match message.WhichOneof("verb"):
            case "prefill":
                return self._take_step("Prefill", message.prefill, self.worker.prefill)
            case "decode":
                return self._take_step("Decode", message.decode, self.worker.decode)
            case "embed":
                return self._take_step("Embed", message.embed, self.worker.embed)
            case "filter":
                self.calls["Filter"] += 1
                return Taken(self._orders.take(message.filter, self.worker.filter), None)
            case "concat":
                self.calls["Concat"] += 1
                return Taken(self._orders.take(message.concat, self.worker.concat), None)
        arrival = arrive(lambda: None)
        trouble(arrival, Code.INVALID_ARGUMENT, "the message names no verb")
        return Taken(arrival, None)

    def _take_step(self, name: str, request: Any, verb: Callable[[Any], Any]) -> Taken:
        self.calls[name] += 1
        return Taken(self._orders.take(request, partial(self._run_step, verb)), request)

    async def _outcome(self, taken: Taken) -> pb.StepOutcome:
        outcome = await asyncio.shield(taken.arrival.outcome)
        if isinstance(outcome, Trouble):
            return pb.StepOutcome(trouble=pb.Trouble(code=outcome.code.value[0], reason=outcome.reason))
        if taken.step is None:
            return pb.StepOutcome(acknowledgement=outcome)
        if late := self._lateness(taken.step.epoch, taken.step.order):
            await asyncio.sleep(late)
        if isinstance(taken.step, pb.EmbedRequest):
            return pb.StepOutcome(embed=outcome)
        return pb.StepOutcome(step=outcome)

    # -- messages without an order

    async def _beside(self, executor: ThreadPoolExecutor, call: Callable[[], Answer], context: Context) -> Answer:
        arrival = arrive(call)
        job = asyncio.get_running_loop().run_in_executor(executor, attempt, call)
        job.add_done_callback(partial(settle, arrival))
        return await self._answer(arrival, context)

    async def _check_epoch(self, number: int, context: Context) -> None:
        if number != self._orders.epoch.number:
            await context.abort(Code.FAILED_PRECONDITION, self._orders.other_epoch(number))
