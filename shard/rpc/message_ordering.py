"""The order of messages: the next one of an epoch is queued for the compute thread, early ones are held back."""

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
class RpcStatus:
    """Status that is sent instead of an answer."""

    code: Any
    reason: str


SHARD_STOPPING = RpcStatus(StatusCode.UNAVAILABLE, "the shard stops")


@dataclass(slots=True)
class PendingCall(Generic[Answer]):
    """Call that applies a received message, and the future of its outcome. The call is made even if the client
    disconnects, since the other ranks make it too."""

    call: Callable[[], Answer | PendingResult[Answer]]
    outcome: "asyncio.Future[Answer | RpcStatus]"


@dataclass(slots=True)
class EpochMessages:
    """State of one epoch's messages: which order is next, which are received and not queued, why the epoch ended."""

    number: int
    # Stages of the end, each with its reason, empty before it: nothing more is queued (written by the event loop),
    # nothing that is queued is applied (by the compute thread), results of steps under way are discarded.
    why_no_more_queued: str = ""
    why_no_more_applied: str = ""
    why_results_discarded: str = ""  # a step with a `PendingResult` failed
    next_order: int = 1  # the lowest order that is not queued yet
    received_messages: dict[int, PendingCall[Any]] = field(default_factory=dict)  # not queued yet
    rejected_orders: set[int] = field(default_factory=set)  # orders that came after the end
    gap_timer: "asyncio.TimerHandle | None" = None
    missing_order: int = 0  # the order that the timer waits for

    @property
    def end_reason(self) -> str:
        """Reason why messages are rejected, or empty."""
        return self.why_no_more_applied or self.why_no_more_queued


class MessageSequencer:
    """Sequencer of the messages of the current epoch.

    The one compute thread runs messages one after the other; once it has rejected or failed one, it rejects all later
    ones of the epoch. A `PendingResult` is waited for in another thread. It is finished in the compute thread: either
    by a job of its own, or earlier by a later message that needs its result.
    """

    def __init__(self, compute_executor: ThreadPoolExecutor, waiting_executor: ThreadPoolExecutor,
                 gap_timeout: float) -> None:
        """Create the sequencer. Each of the executors has one thread."""
        self._compute_executor = compute_executor
        self._waiting_executor = waiting_executor
        self._gap_timeout = gap_timeout
        self.epoch = EpochMessages(0, why_no_more_queued="there was no Reset yet")

    def begin_epoch(self, number: int, reset: Callable[[], Answer]) -> PendingCall[Answer]:
        """Begin an epoch, which is current at once, though steps of the one before may still be under way."""
        self.end_epoch("another epoch was started")
        self.epoch = EpochMessages(number)
        pending_call = make_pending_call(reset)
        self._queue_message(self.epoch, pending_call)
        return pending_call

    def end_epoch(self, reason: str) -> None:
        self._close_epoch(self.epoch, reason)

    def describe_wrong_epoch(self, number: int) -> str:
        return f"the message is of epoch {number}, in force is {self.epoch.number}"

    def receive(self, request: OrderedRequest,
                verb: Callable[[Any], Answer | PendingResult[Answer]]) -> PendingCall[Answer]:
        epoch = self.epoch
        pending_call = make_pending_call(partial(verb, request))
        if request.epoch != epoch.number:
            resolve_with_error(pending_call, StatusCode.FAILED_PRECONDITION, self.describe_wrong_epoch(request.epoch))
        elif not request.order:
            resolve_with_error(pending_call, StatusCode.INVALID_ARGUMENT, "orders are counted from 1")
        elif (request.order < epoch.next_order or request.order in epoch.received_messages
              or request.order in epoch.rejected_orders):
            resolve_with_error(pending_call, StatusCode.ALREADY_EXISTS, f"message {request.order} was taken before")
        else:
            epoch.received_messages[request.order] = pending_call
            self._queue_or_reject_messages(epoch)
        return pending_call

    def _queue_or_reject_messages(self, epoch: EpochMessages) -> None:
        """Queue the messages whose turn it is, and hold back or reject the rest."""
        while not epoch.end_reason and epoch.next_order in epoch.received_messages:
            self._queue_message(epoch, epoch.received_messages.pop(epoch.next_order))
            epoch.next_order += 1
        if epoch.end_reason:
            for pending_call in epoch.received_messages.values():
                pending_call.outcome.set_result(make_epoch_over_status(epoch, epoch.end_reason))
            epoch.rejected_orders.update(epoch.received_messages)
            epoch.received_messages.clear()
        if epoch.received_messages or epoch.missing_order:
            self._update_gap_timer(epoch)

    def _queue_message(self, epoch: EpochMessages, pending_call: PendingCall[Any]) -> None:
        job = asyncio.get_running_loop().run_in_executor(self._compute_executor, self._apply_message, epoch,
                                                         pending_call)

        def resolve(job: "asyncio.Future[Any]") -> None:
            outcome = get_job_outcome(job)
            if not isinstance(outcome, PendingResult):  # which resolves the call later
                self._resolve(epoch, pending_call, outcome)

        job.add_done_callback(resolve)

    def _apply_message(self, epoch: EpochMessages,
                       pending_call: PendingCall[Answer]) -> Answer | RpcStatus | PendingResult[Answer]:
        """Apply a message in the compute thread, and so in order, unless the epoch applies no more. An error ends the
        epoch."""
        if epoch.why_no_more_applied:
            return make_epoch_over_status(epoch, epoch.why_no_more_applied)
        outcome = call_or_status(pending_call.call)
        if isinstance(outcome, RpcStatus):
            epoch.why_no_more_applied = outcome.reason
        elif isinstance(outcome, PendingResult):
            outcome.future.add_done_callback(partial(self._resolve_with_pending_result, epoch, pending_call))
            self._waiting_executor.submit(self._finish_after_result, epoch, pending_call, outcome)
        return outcome

    def _finish_after_result(self, epoch: EpochMessages, pending_call: PendingCall[Any],
                              pending_result: PendingResult[Any]) -> None:
        """Wait for a `PendingResult` in the waiting thread, then finish it in the compute thread."""
        with suppress(Exception):  # `finish_without_raising` meets the same error
            pending_result.wait()
        resolve_as_stopping = partial(self._resolve_threadsafe, epoch, pending_call, SHARD_STOPPING)
        try:
            self._compute_executor.submit(pending_result.finish_without_raising).add_done_callback(
                lambda job: resolve_as_stopping() if job.cancelled() else None)
        except RuntimeError:  # the compute thread has been shut down
            resolve_as_stopping()

    def _resolve_with_pending_result(self, epoch: EpochMessages, pending_call: PendingCall[Any],
                                     future: "Future[Any]") -> None:
        """Resolve the call with its finished `PendingResult`, in the compute thread. A failure of a message behind it
        does not matter, a failed `PendingResult` before it does."""
        outcome: Any = (make_epoch_over_status(epoch, epoch.why_results_discarded) if epoch.why_results_discarded
                        else call_or_status(future.result))
        if isinstance(outcome, RpcStatus):
            epoch.why_results_discarded = epoch.why_results_discarded or outcome.reason
            epoch.why_no_more_applied = epoch.why_no_more_applied or outcome.reason
        self._resolve_threadsafe(epoch, pending_call, outcome)

    def _resolve_threadsafe(self, epoch: EpochMessages, pending_call: PendingCall[Any], outcome: object) -> None:
        """Resolve the call from a thread other than the event loop's."""
        pending_call.outcome.get_loop().call_soon_threadsafe(self._resolve, epoch, pending_call, outcome)

    def _resolve(self, epoch: EpochMessages, pending_call: PendingCall[Any], outcome: object) -> None:
        """Set the outcome of the call, in the event loop."""
        if not pending_call.outcome.done():  # the shard may stop while a step ends
            pending_call.outcome.set_result(outcome)
        if epoch.why_no_more_applied:
            self._queue_or_reject_messages(epoch)

    def _update_gap_timer(self, epoch: EpochMessages) -> None:
        """Start or stop the timer of a missing message, which runs from the first later one on, however many follow."""
        missing = epoch.next_order if epoch.received_messages else 0
        if missing != epoch.missing_order and epoch.gap_timer is not None:
            epoch.gap_timer.cancel()
        if missing != epoch.missing_order and missing:
            reason = f"message {missing} did not arrive within {self._gap_timeout} seconds of a later one"
            epoch.gap_timer = asyncio.get_running_loop().call_later(self._gap_timeout, self._close_epoch, epoch, reason)
        epoch.missing_order = missing

    def _close_epoch(self, epoch: EpochMessages, reason: str) -> None:
        """Queue nothing more. Queued messages are still applied, since the other ranks apply them too."""
        epoch.why_no_more_queued = epoch.why_no_more_queued or reason
        self._queue_or_reject_messages(epoch)


def make_pending_call(call: Callable[[], Answer | PendingResult[Answer]]) -> PendingCall[Answer]:
    return PendingCall(call, asyncio.get_running_loop().create_future())


def resolve_with_job(pending_call: PendingCall[Any], job: "asyncio.Future[Any]") -> None:
    pending_call.outcome.set_result(get_job_outcome(job))


def get_job_outcome(job: "asyncio.Future[Any]") -> Any:
    return SHARD_STOPPING if job.cancelled() else job.result()


def resolve_with_error(pending_call: PendingCall[Any], code: Any, reason: str) -> None:
    pending_call.outcome.set_result(RpcStatus(code, reason))


def make_epoch_over_status(epoch: EpochMessages, reason: str) -> RpcStatus:
    return RpcStatus(StatusCode.FAILED_PRECONDITION, f"epoch {epoch.number} is over: {reason}")


def call_or_status(call: Callable[[], Answer]) -> Answer | RpcStatus:
    """Return the answer of the call, or the status for its error."""
    try:
        return call()
    except MalformedMessage as error:
        return RpcStatus(StatusCode.INVALID_ARGUMENT, str(error))
    except StartupOutOfMemory as error:
        return RpcStatus(StatusCode.RESOURCE_EXHAUSTED, str(error))
    except RejectedMessage as error:
        return RpcStatus(StatusCode.FAILED_PRECONDITION, str(error))
    except StepOutOfMemory as error:
        logger.exception("there was no memory for a step")
        return RpcStatus(StatusCode.RESOURCE_EXHAUSTED, str(error))
    except Exception as error:
        logger.exception("a step failed")
        return RpcStatus(StatusCode.INTERNAL, f"{type(error).__name__}: {error}")
