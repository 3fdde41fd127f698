"""The order of messages: the next one of an epoch is queued for the compute thread, early ones are held back.

The one compute thread runs messages one after the other; once it has rejected or failed one, it rejects all later ones
of the epoch. A `PendingResult` is waited for in another thread and finished in the compute thread, behind the messages
that arrived meanwhile or by one of them.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import grpc

from shard.errors import MalformedMessage, RejectedMessage, StartupOutOfMemory, StepOutOfMemory
from shard.pb import shard_pb2 as pb
from shard.pending_result import PendingResult

StatusCode = grpc.StatusCode
Answer = TypeVar("Answer")
OrderedRequest = pb.PrefillRequest | pb.DecodeRequest | pb.FilterRequest | pb.ConcatRequest | pb.EmbedRequest

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RpcFailure:
    """Status that is sent instead of an answer."""

    code: Any
    reason: str


SHARD_STOPPING = RpcFailure(StatusCode.UNAVAILABLE, "the shard stops")


@dataclass(slots=True)
class PendingCall(Generic[Answer]):
    """A received message and the future of its outcome. It is applied even if the client disconnects, since the other
    ranks apply it too."""

    call: Callable[[], Answer | PendingResult[Answer]]
    outcome: "asyncio.Future[Answer | RpcFailure]"


@dataclass(slots=True)
class Epoch:
    """State of one epoch's messages: which order is next, which came early, and why the epoch ended."""

    number: int
    closed_reason: str = ""  # why nothing more is queued; written by the event loop
    failure_reason: str = ""  # why nothing more is applied; written by the compute thread
    discard_reason: str = ""  # why results of steps under way are discarded: a step with a `PendingResult` failed
    next_order: int = 1  # the lowest order that is not queued yet
    early_messages: dict[int, PendingCall[Any]] = field(default_factory=dict)  # held back until their turn
    rejected_orders: set[int] = field(default_factory=set)  # orders that came after the end
    gap_timer: "asyncio.TimerHandle | None" = None
    missing_order: int = 0  # the order that the timer waits for

    @property
    def end_reason(self) -> str:
        return self.failure_reason or self.closed_reason

    def is_order_used(self, order: int) -> bool:
        return order < self.next_order or order in self.early_messages or order in self.rejected_orders


class MessageSequencer:
    """Sequencer of the messages of the current epoch."""

    def __init__(self, compute_executor: ThreadPoolExecutor, waiting_executor: ThreadPoolExecutor,
                 gap_timeout: float) -> None:
        """Create the sequencer. Each of the executors has one thread."""
        self._compute_executor = compute_executor
        self._waiting_executor = waiting_executor
        self._gap_timeout = gap_timeout
        self.epoch = Epoch(0, closed_reason="there was no Reset yet")

    def begin_epoch(self, number: int, reset: Callable[[], Answer]) -> PendingCall[Answer]:
        """Begin an epoch, which is current at once, though steps of the one before may still be under way."""
        self.end_epoch("another epoch was started")
        self.epoch = Epoch(number)
        received = make_received_message(reset)
        self._queue_message(self.epoch, received)
        return received

    def end_epoch(self, reason: str) -> None:
        self._close_epoch(self.epoch, reason)

    def describe_wrong_epoch(self, number: int) -> str:
        return f"the message is of epoch {number}, in force is {self.epoch.number}"

    def receive(self, request: OrderedRequest,
                verb: Callable[[Any], Answer | PendingResult[Answer]]) -> PendingCall[Answer]:
        epoch, received = self.epoch, make_received_message(partial(verb, request))
        if request.epoch != epoch.number:
            fail_message(received, StatusCode.FAILED_PRECONDITION, self.describe_wrong_epoch(request.epoch))
        elif not request.order:
            fail_message(received, StatusCode.INVALID_ARGUMENT, "orders are counted from 1")
        elif epoch.is_order_used(request.order):
            fail_message(received, StatusCode.ALREADY_EXISTS, f"message {request.order} was taken before")
        else:
            epoch.early_messages[request.order] = received
            self._queue_ready_messages(epoch)
        return received

    def _queue_ready_messages(self, epoch: Epoch) -> None:
        """Queue the messages whose turn it is, and hold back or reject the rest."""
        while not epoch.end_reason and epoch.next_order in epoch.early_messages:
            self._queue_message(epoch, epoch.early_messages.pop(epoch.next_order))
            epoch.next_order += 1
        if epoch.end_reason:
            self._reject_early_messages(epoch)
        self._update_gap_timer(epoch)

    def _queue_message(self, epoch: Epoch, received: PendingCall[Any]) -> None:
        job = asyncio.get_running_loop().run_in_executor(self._compute_executor, self._apply_message, epoch, received)
        job.add_done_callback(partial(self._on_applied, epoch, received))

    def _apply_message(self, epoch: Epoch,
                       received: PendingCall[Answer]) -> Answer | RpcFailure | PendingResult[Answer]:
        """Apply a message in the compute thread, and so in order."""
        outcome = call_unless_failed(epoch, received.call)
        if isinstance(outcome, PendingResult):
            outcome.future.add_done_callback(partial(self._post_pending_result, epoch, received))
            self._waiting_executor.submit(self._wait_and_finish, epoch, received, outcome)
        return outcome

    def _wait_and_finish(self, epoch: Epoch, received: PendingCall[Any],
                         pending_result: PendingResult[Any]) -> None:
        """Wait for a `PendingResult` in the waiting thread, then finish it in the compute thread."""
        with suppress(Exception):  # `finish_without_raising` meets the same error
            pending_result.wait()
        post_stopping = partial(self._post_outcome, epoch, received, SHARD_STOPPING)
        try:
            self._compute_executor.submit(pending_result.finish_without_raising).add_done_callback(
                lambda job: post_stopping() if job.cancelled() else None)
        except RuntimeError:  # the compute thread has been shut down
            post_stopping()

    def _post_pending_result(self, epoch: Epoch, received: PendingCall[Any], future: "Future[Any]") -> None:
        """Post the outcome of a `PendingResult`, in the compute thread. A failure of a message behind it does not
        matter, a failed `PendingResult` before it does."""
        outcome: Any = make_epoch_over_failure(epoch, epoch.discard_reason) or call_or_failure(future.result)
        if isinstance(outcome, RpcFailure):
            epoch.discard_reason = epoch.discard_reason or outcome.reason
            epoch.failure_reason = epoch.failure_reason or outcome.reason
        self._post_outcome(epoch, received, outcome)

    def _post_outcome(self, epoch: Epoch, received: PendingCall[Any], outcome: object) -> None:
        received.outcome.get_loop().call_soon_threadsafe(self._set_outcome, epoch, received, outcome)

    def _on_applied(self, epoch: Epoch, received: PendingCall[Any], job: "asyncio.Future[Any]") -> None:
        outcome = get_job_outcome(job)
        if not isinstance(outcome, PendingResult):
            self._set_outcome(epoch, received, outcome)

    def _set_outcome(self, epoch: Epoch, received: PendingCall[Any], outcome: object) -> None:
        if not received.outcome.done():  # the shard may stop while a step ends
            received.outcome.set_result(outcome)
        if epoch.failure_reason:
            self._queue_ready_messages(epoch)

    def _update_gap_timer(self, epoch: Epoch) -> None:
        """Start or stop the timer of a missing message, which runs from the first later one on, however many follow."""
        missing = epoch.next_order if epoch.early_messages else 0
        if missing != epoch.missing_order and epoch.gap_timer is not None:
            epoch.gap_timer.cancel()
        if missing != epoch.missing_order and missing:
            reason = f"message {missing} did not arrive within {self._gap_timeout} seconds of a later one"
            epoch.gap_timer = asyncio.get_running_loop().call_later(self._gap_timeout, self._close_epoch, epoch, reason)
        epoch.missing_order = missing

    def _close_epoch(self, epoch: Epoch, reason: str) -> None:
        """Queue nothing more. Queued messages are still applied, since the other ranks apply them too."""
        epoch.closed_reason = epoch.closed_reason or reason
        self._queue_ready_messages(epoch)

    def _reject_early_messages(self, epoch: Epoch) -> None:
        for received in epoch.early_messages.values():
            received.outcome.set_result(make_epoch_over_failure(epoch, epoch.end_reason))
        epoch.rejected_orders.update(epoch.early_messages)
        epoch.early_messages.clear()


def make_received_message(call: Callable[[], Answer | PendingResult[Answer]]) -> PendingCall[Answer]:
    return PendingCall(call, asyncio.get_running_loop().create_future())


def set_outcome(received: PendingCall[Any], job: "asyncio.Future[Any]") -> None:
    received.outcome.set_result(get_job_outcome(job))


def get_job_outcome(job: "asyncio.Future[Any]") -> Any:
    return SHARD_STOPPING if job.cancelled() else job.result()


def fail_message(received: PendingCall[Any], code: Any, reason: str) -> None:
    received.outcome.set_result(RpcFailure(code, reason))


def call_unless_failed(epoch: Epoch, call: Callable[[], Answer]) -> Answer | RpcFailure:
    """Run a message's call in the compute thread, unless the epoch has failed."""
    if (refusal := make_epoch_over_failure(epoch, epoch.failure_reason)) is not None:
        return refusal
    outcome = call_or_failure(call)
    if isinstance(outcome, RpcFailure):
        epoch.failure_reason = outcome.reason
    return outcome


def make_epoch_over_failure(epoch: Epoch, reason: str) -> RpcFailure | None:
    return RpcFailure(StatusCode.FAILED_PRECONDITION, f"epoch {epoch.number} is over: {reason}") if reason else None


def call_or_failure(call: Callable[[], Answer]) -> Answer | RpcFailure:
    try:
        return call()
    except MalformedMessage as error:
        return RpcFailure(StatusCode.INVALID_ARGUMENT, str(error))
    except StartupOutOfMemory as error:
        return RpcFailure(StatusCode.RESOURCE_EXHAUSTED, str(error))
    except RejectedMessage as error:
        return RpcFailure(StatusCode.FAILED_PRECONDITION, str(error))
    except StepOutOfMemory as error:
        logger.exception("there was no memory for a step")
        return RpcFailure(StatusCode.RESOURCE_EXHAUSTED, str(error))
    except Exception as error:
        logger.exception("a step failed")
        return RpcFailure(StatusCode.INTERNAL, f"{type(error).__name__}: {error}")
