"""Scheduler that records its calls and its decisions of the last minutes, in memory.

It records what scheduling depends on: times, lengths, block hashes, which sequences ended; no token and no text.
Segments of half a minute or more (less if they reach MOST_EVENTS) follow each other, each with a snapshot of the whole
scheduler at its beginning, so that a recording can be replayed from the oldest segment that is kept.
"""

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Any

from router.block_hash import block_hashes
from router.recording import decision
from router.recording.anatomy import names_of
from router.recording.decision import Outcome
from router.recording.redact import bare, parts_of
from router.recording.snapshot import Snapshot, take
from router.request import FinishReason, Request, Resource
from router.scheduler.events import Event, Finished, Produced
from router.scheduler.fault_isolation import Loss
from router.scheduler.plan import Answer, ModelFacts, Move, Plan
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy

SEGMENT_SECONDS, SEGMENT_SHARE = 30.0, 0.1  # a segment lasts so many seconds or this share of all kept, if longer
MOST_EVENTS = 20_000  # in a segment, which ends earlier if need be
MOST_SEGMENTS = 16  # kept, however short they are

# A recorded call: method, time, arguments, outcome, and the block hashes computed during the call. A time alone is a
# call of `plan` that returned None.
Note = tuple[str, float, tuple[Any, ...], Outcome, tuple[bytes, ...]] | float


@dataclass(frozen=True, slots=True)
class Segment:
    snapshot: Snapshot
    began: float
    notes: Rows[Note]


class Tape:
    """Ring of segments. The first `cut` begins the first one."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.segments: deque[Segment] = deque(maxlen=MOST_SEGMENTS)
        self.notes: list[Note] = []  # of the last segment
        self.names: list[bytes] = []  # block hashes computed during the current call
        self.due = 0.0  # when the next segment begins

    def cut(self, snapshot: Snapshot, now: float) -> None:
        self.notes = []
        self.segments.append(Segment(snapshot, now, self.notes))
        self.due = now + max(SEGMENT_SECONDS, SEGMENT_SHARE * self.seconds)
        while len(self.segments) > 1 and self.segments[1].began < now - self.seconds:
            self.segments.popleft()

    def note(self, call: str, now: float, given: tuple[Any, ...], outcome: Outcome) -> None:
        names = tuple(self.names) if self.names else ()
        self.names.clear()
        self.notes.append((call, now, given, outcome, names))

    def copy(self) -> list[Segment]:
        """Return immutable copies of the segments kept so far."""
        return [Segment(segment.snapshot, segment.began, tuple(segment.notes)) for segment in self.segments]


class Hasher:
    """Block hasher that records every hash on the tape."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def __call__(self, before: bytes, tokens: Rows[int], size: int) -> tuple[bytes, ...]:
        names = block_hashes(before, tokens, size)
        self._tape.names += names
        return names

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle as the plain `block_hashes`: the tape is not part of a snapshot."""
        return plain_hasher, ()


def plain_hasher() -> object:
    return block_hashes


class Recorder(Scheduler):
    """Scheduler that records the arguments and outcome of every call that can change its state."""

    def __init__(self, policy: Policy, facts: ModelFacts, seconds: float, now: float) -> None:
        """Keep at least the last `seconds`, or fewer if there are too many events."""
        self._tape = tape = Tape(seconds)
        self._hears_many = facts.tokens_per_step > 1
        super().__init__(policy, facts, Hasher(tape))
        tape.cut(take(self), now)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle as a plain `Scheduler`, without the tape."""
        fields = {name: getattr(self, name) for name in names_of(Scheduler) if hasattr(self, name)}
        return object.__new__, (Scheduler,), fields

    def segments(self) -> list[Segment]:
        return self._tape.copy()

    # -- requests

    def submit(self, request: Request, now: float) -> list[Event]:
        events = super().submit(request, now)
        self._tape.note("submit", now, (bare(request),), decision.of_events(events))
        return events

    def cancel(self, number: int, now: float) -> list[Event]:
        events = super().cancel(number, now)
        self._tape.note("cancel", now, (number,), decision.of_events(events))
        return events

    def hold(self, number: int, now: float) -> list[Event]:
        events = super().hold(number, now)
        self._tape.note("hold", now, (number,), decision.of_events(events))
        return events

    def resume(self, number: int, now: float) -> list[Event]:
        events = super().resume(number, now)
        self._tape.note("resume", now, (number,), decision.of_events(events))
        return events

    def available(self, resource: Resource, now: float) -> list[Event]:
        events = super().available(resource, now)
        self._tape.note("available", now, parts_of(resource), decision.of_events(events))
        return events

    def unavailable(self, resource: Resource, reason: str, now: float) -> list[Event]:
        events = super().unavailable(resource, reason, now)
        self._tape.note("unavailable", now, (*parts_of(resource), reason), decision.of_events(events))
        return events

    def removed(self, resource: Resource, now: float) -> list[Event]:
        events = super().removed(resource, now)
        self._tape.note("removed", now, parts_of(resource), decision.of_events(events))
        return events

    def want(self, resource: Resource, now: float) -> list[Event]:
        events = super().want(resource, now)
        self._tape.note("want", now, parts_of(resource), decision.of_events(events))
        return events

    def drop(self, resource: Resource, now: float) -> list[Event]:
        events = super().drop(resource, now)
        self._tape.note("drop", now, parts_of(resource), decision.of_events(events))
        return events

    def moves(self, now: float) -> list[Move]:
        moves = super().moves(now)
        if moves:
            self._tape.note("moves", now, (), decision.of_moves(moves))
        return moves

    # -- steps

    def plan(self, now: float) -> Plan | None:
        tape = self._tape
        if now >= tape.due or len(tape.notes) >= MOST_EVENTS:
            tape.cut(take(self), now)
        try:
            plan = super().plan(now)
        except Exception as error:
            tape.note("crash", now, ("plan",), (repr(error),))
            raise
        if plan is None and not tape.names:
            tape.notes.append(now)
        else:
            tape.note("plan", now, (), decision.of_plan(plan) if plan is not None else ())
        return plan

    def complete(self, order: int, answer: Answer, stopped: Mapping[int, int], now: float) -> list[Event]:
        try:
            events = super().complete(order, answer, stopped, now)
        except Exception as error:
            self._tape.note("crash", now, ("complete", order, answer.epoch, answer.seconds), (repr(error),))
            raise
        outcome = decision.of_events(events)
        given: tuple[Any, ...] = (order, answer.epoch, answer.seconds)
        if outcome or stopped or self._hears_many or answer.failed:
            given += rare(answer, stopped, events)
        self._tape.note("complete", now, given, outcome)
        return events

    # -- time and shards

    def expire(self, now: float) -> list[Event]:
        events = super().expire(now)
        self._tape.note("expire", now, (), decision.of_events(events))
        return events

    def shards_lost(self, now: float, loss: Loss) -> list[Event]:
        events = super().shards_lost(now, loss)
        self._tape.note("shards_lost", now, (loss.name,), decision.of_events(events))
        return events

    def shards_ready(self, facts: ModelFacts, epoch: int, now: float) -> list[Event]:
        self._hears_many = facts.tokens_per_step > 1
        events = super().shards_ready(facts, epoch, now)
        self._tape.note("shards_ready", now, (facts, epoch), decision.of_events(events))
        return events


def new_core(policy: Policy, facts: ModelFacts, seconds: float, now: float) -> Scheduler:
    """Return a scheduler that records at least the last `seconds`, or does not record if that is 0."""
    return Recorder(policy, facts, seconds, now) if seconds else Scheduler(policy, facts)


def rare(answer: Answer, stopped: Mapping[int, int], events: list[Event]) -> tuple[Any, ...]:
    """Return how an answer differs from the usual one, a token for each sequence, none of which ends.

    The parts are: lengths of rows that do not have one token, the index of the end token of each sequence that one
    ended, tokens up to a stop string, and failures.
    """
    counts = next((event.counts for event in events if isinstance(event, Produced)), {})
    ended = [(event.sequence, counts[event.sequence] - 1) for event in events
             if isinstance(event, Finished) and event.reason is FinishReason.END_TOKEN]
    lengths = [(number, len(row.tokens)) for number, row in answer.rows.items() if len(row.tokens) != 1]
    return (tuple(lengths), tuple(ended), tuple(stopped.items()), tuple(answer.failed.items()))
