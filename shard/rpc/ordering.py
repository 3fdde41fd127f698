"""The order of messages: the next one of an epoch is queued for the compute thread, early ones are held back.

The one compute thread runs messages one after the other; once it has rejected or failed one, it rejects all later ones
of the epoch. A `Later` is waited for in another thread and finished in the compute thread, behind the messages that
arrived meanwhile or by one of them.
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

from shard.deferred import Later
from shard.errors import Exhausted, Malformed, NoRoom, Refused
from shard.pb import shard_pb2 as pb

Code = grpc.StatusCode
Answer = TypeVar("Answer")
Ordered = pb.PrefillRequest | pb.DecodeRequest | pb.FilterRequest | pb.ConcatRequest | pb.EmbedRequest

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Status that is sent instead of an answer."""

    code: Any
    reason: str


STOPS = Trouble(Code.UNAVAILABLE, "the shard stops")


@dataclass(slots=True)
class Arrival(Generic[Answer]):
    """A received message and the future of its outcome. It is applied even if the client disconnects, since the other
    ranks apply it too."""

    call: Callable[[], Answer | Later[Answer]]
    outcome: "asyncio.Future[Answer | Trouble]"


@dataclass(slots=True)
class Epoch:
    number: int
    lost: str = ""  # why nothing more is queued; written by the event loop
    failed: str = ""  # why nothing more is applied; written by the compute thread
    broken: str = ""  # why results of steps under way are discarded: a step with a `Later` failed
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


class Orders:
    """Sequencer of the messages of the current epoch."""

    def __init__(self, compute: ThreadPoolExecutor, waiting: ThreadPoolExecutor, gap_timeout: float) -> None:
        """Create the sequencer. Each of the executors has one thread."""
        self._compute = compute
        self._waiting = waiting
        self._gap_timeout = gap_timeout
        self.epoch = Epoch(0, lost="there was no Reset yet")

    def begin(self, number: int, reset: Callable[[], Answer]) -> Arrival[Answer]:
        """Begin an epoch, which is current at once, though steps of the one before may still be under way."""
        self.end("another epoch was started")
        self.epoch = Epoch(number)
        arrival = arrive(reset)
        self._queue(self.epoch, arrival)
        return arrival

    def end(self, reason: str) -> None:
        self._end(self.epoch, reason)

    def other_epoch(self, number: int) -> str:
        return f"the message is of epoch {number}, in force is {self.epoch.number}"

    def take(self, request: Ordered, verb: Callable[[Any], Answer | Later[Answer]]) -> Arrival[Answer]:
        epoch, arrival = self.epoch, arrive(partial(verb, request))
        if request.epoch != epoch.number:
            trouble(arrival, Code.FAILED_PRECONDITION, self.other_epoch(request.epoch))
        elif not request.order:
            trouble(arrival, Code.INVALID_ARGUMENT, "orders are counted from 1")
        elif epoch.used(request.order):
            trouble(arrival, Code.ALREADY_EXISTS, f"message {request.order} was taken before")
        else:
            epoch.early[request.order] = arrival
            self._go_on(epoch)
        return arrival

    def _go_on(self, epoch: Epoch) -> None:
        """Queue the messages whose turn it is, and hold back or reject the rest."""
        while not epoch.end and epoch.next in epoch.early:
            self._queue(epoch, epoch.early.pop(epoch.next))
            epoch.next += 1
        if epoch.end:
            self._refuse_early(epoch)
        self._watch_gap(epoch)

    def _queue(self, epoch: Epoch, arrival: Arrival[Any]) -> None:
        job = asyncio.get_running_loop().run_in_executor(self._compute, self._apply, epoch, arrival)
        job.add_done_callback(partial(self._applied, epoch, arrival))

    def _apply(self, epoch: Epoch, arrival: Arrival[Answer]) -> Answer | Trouble | Later[Answer]:
        """Apply a message in the compute thread, and so in order."""
        outcome = apply(epoch, arrival.call)
        if isinstance(outcome, Later):
            outcome.answer.add_done_callback(partial(self._come, epoch, arrival))
            self._waiting.submit(self._see_through, epoch, arrival, outcome)
        return outcome

    def _see_through(self, epoch: Epoch, arrival: Arrival[Any], later: Later[Any]) -> None:
        """Wait for a `Later` in the waiting thread, then finish it in the compute thread."""
        with suppress(Exception):  # `settle` meets the same error
            later.wait()
        stops = partial(self._post, epoch, arrival, STOPS)
        try:
            self._compute.submit(later.settle).add_done_callback(lambda job: stops() if job.cancelled() else None)
        except RuntimeError:  # the compute thread has been shut down
            stops()

    def _come(self, epoch: Epoch, arrival: Arrival[Any], answer: "Future[Any]") -> None:
        """Post the outcome of a `Later`, in the compute thread. A failure of a message behind it does not matter, a
        failed `Later` before it does."""
        outcome: Any = over(epoch, epoch.broken) or attempt(answer.result)
        if isinstance(outcome, Trouble):
            epoch.broken = epoch.broken or outcome.reason
            epoch.failed = epoch.failed or outcome.reason
        self._post(epoch, arrival, outcome)

    def _post(self, epoch: Epoch, arrival: Arrival[Any], outcome: object) -> None:
        arrival.outcome.get_loop().call_soon_threadsafe(self._settle, epoch, arrival, outcome)

    def _applied(self, epoch: Epoch, arrival: Arrival[Any], job: "asyncio.Future[Any]") -> None:
        outcome = told(job)
        if not isinstance(outcome, Later):
            self._settle(epoch, arrival, outcome)

    def _settle(self, epoch: Epoch, arrival: Arrival[Any], outcome: object) -> None:
        if not arrival.outcome.done():  # the shard may stop while a step ends
            arrival.outcome.set_result(outcome)
        if epoch.failed:
            self._go_on(epoch)

    def _watch_gap(self, epoch: Epoch) -> None:
        """Start or stop the timer of a missing message, which runs from the first later one on, however many follow."""
        missing = epoch.next if epoch.early else 0
        if missing != epoch.gap_at and epoch.gap is not None:
            epoch.gap.cancel()
        if missing != epoch.gap_at and missing:
            late = f"message {missing} did not arrive within {self._gap_timeout} seconds of a later one"
            epoch.gap = asyncio.get_running_loop().call_later(self._gap_timeout, self._end, epoch, late)
        epoch.gap_at = missing

    def _end(self, epoch: Epoch, reason: str) -> None:
        """Queue nothing more. Queued messages are still applied, since the other ranks apply them too."""
        epoch.lost = epoch.lost or reason
        self._go_on(epoch)

    def _refuse_early(self, epoch: Epoch) -> None:
        for arrival in epoch.early.values():
            arrival.outcome.set_result(over(epoch, epoch.end))
        epoch.refused.update(epoch.early)
        epoch.early.clear()


def arrive(call: Callable[[], Answer | Later[Answer]]) -> Arrival[Answer]:
    return Arrival(call, asyncio.get_running_loop().create_future())


def settle(arrival: Arrival[Any], job: "asyncio.Future[Any]") -> None:
    arrival.outcome.set_result(told(job))


def told(job: "asyncio.Future[Any]") -> Any:
    return STOPS if job.cancelled() else job.result()


def trouble(arrival: Arrival[Any], code: Any, reason: str) -> None:
    arrival.outcome.set_result(Trouble(code, reason))


def apply(epoch: Epoch, call: Callable[[], Answer]) -> Answer | Trouble:
    """Run a message's call in the compute thread, unless the epoch has failed."""
    if (refusal := over(epoch, epoch.failed)) is not None:
        return refusal
    outcome = attempt(call)
    if isinstance(outcome, Trouble):
        epoch.failed = outcome.reason
    return outcome


def over(epoch: Epoch, why: str) -> Trouble | None:
    return Trouble(Code.FAILED_PRECONDITION, f"epoch {epoch.number} is over: {why}") if why else None


def attempt(call: Callable[[], Answer]) -> Answer | Trouble:
    try:
        return call()
    except Malformed as error:
        return Trouble(Code.INVALID_ARGUMENT, str(error))
    except NoRoom as error:
        return Trouble(Code.RESOURCE_EXHAUSTED, str(error))
    except Refused as error:
        return Trouble(Code.FAILED_PRECONDITION, str(error))
    except Exhausted as error:
        logger.exception("there was no memory for a step")
        return Trouble(Code.RESOURCE_EXHAUSTED, str(error))
    except Exception as error:
        logger.exception("a step failed")
        return Trouble(Code.INTERNAL, f"{type(error).__name__}: {error}")
