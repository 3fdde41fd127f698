"""Table of the unfinished sequences, with their deadlines."""

from collections.abc import Iterator
from itertools import count

from router.request import FinishReason, Request, Resource, Wish
from router.scheduler.deadlines import Deadlines
from router.scheduler.events import Expired, Failed, Finished
from router.scheduler.fairness import Shares
from router.scheduler.fault_isolation import Trials
from router.scheduler.resource_cache import Residents
from router.scheduler.running import Running
from router.scheduler.sequence import Sequence, State
from router.scheduler.wait_forecast import Forecast
from router.scheduler.waiting_queue import Queue


class Register:
    """Unfinished sequences by number. Every sequence ends in `end`, whatever the reason."""

    def __init__(
            self, queue: Queue, trials: Trials, shares: Shares, forecast: Forecast, residents: Residents) -> None:
        self._queue = queue
        self._trials = trials
        self._shares = shares
        self._forecast = forecast
        self._residents = residents
        self._deadlines = Deadlines()
        self._numbers = count(1)
        self._sequences: dict[int, Sequence] = {}

    def start_empty(self, running: Running) -> None:
        self._running = running

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def __contains__(self, number: int) -> bool:
        return number in self._sequences

    def __getitem__(self, number: int) -> Sequence:
        return self._sequences[number]

    def get(self, number: int) -> Sequence | None:
        return self._sequences.get(number)

    def enter(self, request: Request, now: float) -> Sequence:
        sequence = Sequence(request, next(self._numbers), now)
        self._sequences[sequence.number] = sequence
        self._shares.enter(request.tenant)
        self._residents.enter(sequence)
        self._deadlines.add(sequence)
        return sequence

    def who_needs(self, resource: Resource) -> list[Sequence]:
        return [sequence for sequence in self if resource in sequence.request.needs]

    @property
    def wake_at(self) -> float | None:
        """The earliest deadline; None if no sequence has one."""
        return self._deadlines.next()

    def expire(self, now: float) -> list[Finished | Expired]:
        """End sequences whose deadline has passed: without a token they expire, waiting with tokens they finish.

        Others, which run with a token generated or in flight, finish with their next token.
        """
        events: list[Finished | Expired] = []
        for sequence in self._deadlines.due(now):
            if sequence.generated and sequence.state is State.WAITING:
                events.append(self.finish(sequence, FinishReason.TIMEOUT, now))
            elif not sequence.generated and not sequence.in_flight:
                events.append(self._expire(sequence, now))
        return events

    def wait_again(self, sequence: Sequence) -> None:
        """Return the sequence to the queue with its tokens.

        Its deadline is added again, since `Deadlines.due` may have removed it while the sequence ran.
        """
        sequence.state = State.WAITING
        self._queue.push(sequence)
        self._deadlines.add(sequence)

    def wait_once_answered(self, sequence: Sequence) -> None:
        """Return a preempted sequence to the queue if none of its tokens is in flight."""
        if sequence.state is State.YIELDING and not sequence.in_flight:
            self.wait_again(sequence)

    # -- ends

    def finish(self, sequence: Sequence, reason: FinishReason, now: float) -> Finished:
        self.end(sequence, now)
        if sequence.request.wish is Wish.TEXT:
            self._forecast.ended(len(sequence.generated), sequence.request.max_new_tokens)
        return Finished(sequence.number, reason)

    def fail(self, sequence: Sequence, reason: str, now: float) -> Failed:
        self.end(sequence, now)
        return Failed(sequence.number, reason)

    def end(self, sequence: Sequence, now: float) -> None:
        if sequence.state is State.WAITING:
            self._queue.remove(sequence)
        elif sequence.state is State.RUNNING:
            self._running.leave(sequence, State.OVER)
        elif sequence.state is State.ENDING:
            self._running.free(sequence)
        self._trials.clear(sequence)
        sequence.state = State.OVER
        sequence.story.end(now)
        self._shares.leave(sequence.request.tenant)
        self._residents.leave(sequence)
        self._deadlines.forget_ended()
        del self._sequences[sequence.number]

    def _expire(self, sequence: Sequence, now: float) -> Expired:
        reason = f"no token within {now - sequence.arrival:.3f} seconds (x-request-timeout-ms): {sequence.story.cause}"
        self.end(sequence, now)
        return Expired(sequence.number, reason)
