"""The gRPC service of a shard: the calls of the contract, and the status codes of errors. Messages with an order pass
through `message_ordering.py`, whether they arrive as separate calls or on a `Steps` stream.
"""
# ruff: noqa: N802 - gRPC names a method as the contract does

import asyncio
import operator
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from shard.pb import shard_pb2 as pb
from shard.pb import shard_pb2_grpc
from shard.pending_result import PendingResult
from shard.rpc.message_ordering import (
    Answer,
    MessageSequencer,
    PendingCall,
    RpcStatus,
    StatusCode,
    call_or_status,
    make_pending_call,
    resolve_with_error,
    resolve_with_job,
)
from shard.telemetry.startup_progress import READY_PHASE, OnProgress, ignore_progress
from shard.telemetry.step_instrumentation import VerbCaller


class Worker(Protocol):
    """Interface of workers, which run the steps. A worker raises MalformedMessage or RejectedMessage before anything
    has changed, and anything else if a step failed. A decode may return a `PendingResult`.

    `info` is called at any time, `load_resource` and `unload_resource` while steps run, `close` once, to wake up a call
    that waits.
    """

    def info(self) -> pb.InfoAnswer: ...
    def warmup(self, request: pb.WarmupRequest) -> pb.WarmupAnswer: ...
    def reset(self, request: pb.ResetRequest) -> pb.ResetAnswer: ...
    def prefill(self, request: pb.PrefillRequest) -> pb.StepAnswer: ...
    def decode(self, request: pb.DecodeRequest) -> pb.StepAnswer | PendingResult[pb.StepAnswer]: ...
    def filter(self, request: pb.FilterRequest) -> pb.Acknowledgement: ...
    def concat(self, request: pb.ConcatRequest) -> pb.Acknowledgement: ...
    def embed(self, request: pb.EmbedRequest) -> pb.EmbedAnswer: ...
    def load_resource(self, request: pb.LoadRequest) -> pb.LoadAnswer: ...
    def unload_resource(self, request: pb.UnloadRequest) -> pb.UnloadAnswer: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ReceivedStepMessage:
    """Message received on a `Steps` stream."""

    pending_call: PendingCall[Any]
    step_request: pb.PrefillRequest | pb.DecodeRequest | pb.EmbedRequest | None  # None: the message runs no step


@dataclass(eq=False, slots=True)
class StepStreamServer:
    """One open `Steps` call: answers messages in the order in which they arrived."""

    receive: Callable[[Any], Any]  # called when a message arrives
    await_outcome: Callable[[Any], Awaitable[Any]]  # called with its result when the answer is due
    _received_messages: asyncio.Queue[Any] = field(default_factory=asyncio.Queue, init=False)

    async def serve(self, messages: AsyncIterator[Any], context: Any) -> None:
        reader = asyncio.create_task(self._read_messages(messages))
        try:
            while (received := await self._received_messages.get()) is not None:
                await context.write(await self.await_outcome(received))
        finally:
            reader.cancel()
            await asyncio.wait([reader])

    async def _read_messages(self, messages: AsyncIterator[Any]) -> None:
        try:
            async for message in messages:
                self._received_messages.put_nowait(self.receive(message))
        finally:
            self.end_call()

    def end_call(self) -> None:
        """End the call once all messages received so far are answered."""
        self._received_messages.put_nowait(None)


class ShardService(shard_pb2_grpc.ShardServicer):
    """The contract's calls on one worker."""

    def __init__(self, worker: Worker, gap_timeout: float, answer_delay: Callable[[int, int], float] | None = None,
                 call_verb: VerbCaller = operator.call, compute_executor: ThreadPoolExecutor | None = None, *,
                 on_progress: OnProgress = ignore_progress) -> None:
        """Create the service. `answer_delay` returns by how many seconds the answer to a step, given by epoch and
        order, is delayed; None delays none. `call_verb` calls the verb with the request, in the compute thread: that of
        `compute_executor`, in which the worker was made if it must be made where it computes. The service owns
        `compute_executor` from now on. `on_progress` is called when the shard is warm."""
        self.worker = worker
        self._answer_delay = answer_delay or (lambda _epoch, _order: 0.0)
        self._call_verb = call_verb
        self._on_progress = on_progress
        self._compute_executor = compute_executor or ThreadPoolExecutor(1, "compute")
        self._waiting_executor = ThreadPoolExecutor(1, "waiting")
        self._sequencer = MessageSequencer(self._compute_executor, self._waiting_executor, gap_timeout)
        self._loading_executor = ThreadPoolExecutor(1, "loading")
        self._open_calls: set[asyncio.Task[Any]] = set()
        self._step_streams: set[StepStreamServer] = set()

    def stop(self) -> None:
        """Begin no new work, and let the calls under way end soon."""
        self._sequencer.end_epoch("the shard stops")
        self.worker.close()
        for stream in self._step_streams:
            stream.end_call()

    def close(self) -> None:
        """Cancel queued messages and wait for the threads."""
        for executor in (self._compute_executor, self._loading_executor):
            executor.shutdown(cancel_futures=True)
        self._waiting_executor.shutdown()  # each of its jobs finds that the compute thread has been shut down

    async def wait_for_calls(self) -> None:
        """Wait until every call has ended."""
        if self._open_calls:
            await asyncio.wait(self._open_calls)

    # -- the calls

    async def Info(self, request: pb.InfoRequest, context: Any) -> pb.InfoAnswer:  # noqa: ARG002
        answer = self.worker.info()
        answer.epoch = self._sequencer.epoch.number  # current, though its Reset may still be queued
        return answer

    async def Warmup(self, request: pb.WarmupRequest, context: Any) -> pb.WarmupAnswer:
        answer = await self._run_unordered(self._compute_executor, partial(self.worker.warmup, request), context)
        self._on_progress(READY_PHASE, 0, 0)
        return answer

    async def Reset(self, request: pb.ResetRequest, context: Any) -> pb.ResetAnswer:
        current_epoch = self._sequencer.epoch.number
        if request.epoch <= current_epoch:
            await context.abort(StatusCode.FAILED_PRECONDITION,
                                f"epoch {current_epoch} is in force, {request.epoch} is not higher")
        pending_call = self._sequencer.begin_epoch(request.epoch, partial(self.worker.reset, request))
        return await self._await_answer(pending_call, context)

    async def Prefill(self, request: pb.PrefillRequest, context: Any) -> pb.StepAnswer:
        return await self._answer_step(request, self.worker.prefill, context)

    async def Decode(self, request: pb.DecodeRequest, context: Any) -> pb.StepAnswer:
        return await self._answer_step(request, self.worker.decode, context)

    async def Filter(self, request: pb.FilterRequest, context: Any) -> pb.Acknowledgement:
        return await self._await_answer(self._sequencer.receive(request, self.worker.filter), context)

    async def Concat(self, request: pb.ConcatRequest, context: Any) -> pb.Acknowledgement:
        return await self._await_answer(self._sequencer.receive(request, self.worker.concat), context)

    async def Embed(self, request: pb.EmbedRequest, context: Any) -> pb.EmbedAnswer:
        return await self._answer_step(request, self.worker.embed, context)

    async def Steps(self, messages: AsyncIterator[pb.StepMessage], context: Any) -> None:
        stream = StepStreamServer(self._receive_message, self._await_outcome)
        self._step_streams.add(stream)
        try:
            self._track_call()
            await stream.serve(messages, context)
        finally:
            self._step_streams.discard(stream)

    async def Load(self, request: pb.LoadRequest, context: Any) -> pb.LoadAnswer:
        await self._check_epoch(request.epoch, context)
        return await self._run_unordered(self._loading_executor, partial(self.worker.load_resource, request), context)

    async def Unload(self, request: pb.UnloadRequest, context: Any) -> pb.UnloadAnswer:
        await self._check_epoch(request.epoch, context)
        return await self._run_unordered(self._loading_executor, partial(self.worker.unload_resource, request), context)

    def _track_call(self) -> None:
        call = asyncio.current_task()
        assert call is not None
        self._open_calls.add(call)
        call.add_done_callback(self._open_calls.discard)

    async def _await_answer(self, pending_call: PendingCall[Answer], context: Any) -> Answer:
        self._track_call()
        outcome = await asyncio.shield(pending_call.outcome)
        if isinstance(outcome, RpcStatus):
            await context.abort(outcome.code, outcome.reason)
            raise AssertionError("abort raises")
        return outcome

    # -- messages with an order

    async def _answer_step(self, request: Any, verb: Callable[[Any], Answer | PendingResult[Answer]],
                           context: Any) -> Answer:
        answer: Answer = await self._await_answer(self._sequencer.receive(request, partial(self._call_verb, verb)),
                                                  context)
        if delay := self._answer_delay(request.epoch, request.order):
            await asyncio.sleep(delay)
        return answer

    def _receive_message(self, message: pb.StepMessage) -> ReceivedStepMessage:
        name = message.WhichOneof("verb")
        if name is None:
            pending_call = make_pending_call(lambda: None)
            resolve_with_error(pending_call, StatusCode.INVALID_ARGUMENT, "the message names no verb")
            return ReceivedStepMessage(pending_call, None)
        request, verb = getattr(message, name), getattr(self.worker, name)
        if name in {"filter", "concat"}:
            return ReceivedStepMessage(self._sequencer.receive(request, verb), None)
        return ReceivedStepMessage(self._sequencer.receive(request, partial(self._call_verb, verb)), request)

    async def _await_outcome(self, streamed: ReceivedStepMessage) -> pb.StepOutcome:
        outcome = await asyncio.shield(streamed.pending_call.outcome)
        if isinstance(outcome, RpcStatus):
            return pb.StepOutcome(trouble=pb.Trouble(code=outcome.code.value[0], reason=outcome.reason))
        if streamed.step_request is None:
            return pb.StepOutcome(acknowledgement=outcome)
        if delay := self._answer_delay(streamed.step_request.epoch, streamed.step_request.order):
            await asyncio.sleep(delay)
        if isinstance(streamed.step_request, pb.EmbedRequest):
            return pb.StepOutcome(embed=outcome)
        return pb.StepOutcome(step=outcome)

    # -- messages without an order

    async def _run_unordered(self, executor: ThreadPoolExecutor, call: Callable[[], Answer],
                             context: Any) -> Answer:
        pending_call = make_pending_call(call)
        job = asyncio.get_running_loop().run_in_executor(executor, call_or_status, call)
        job.add_done_callback(partial(resolve_with_job, pending_call))
        return await self._await_answer(pending_call, context)

    async def _check_epoch(self, epoch_number: int, context: Any) -> None:
        if epoch_number != self._sequencer.epoch.number:
            await context.abort(StatusCode.FAILED_PRECONDITION, self._sequencer.describe_wrong_epoch(epoch_number))
