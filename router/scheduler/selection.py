"""Selection of the next waiting sequence to start; records for the others why they wait.

The tenant that has received least goes first. Within a tenant the best rank goes first, unless a later sequence finds
most of its prompt in the cache and the first one has not waited for long. After failed steps, suspects go before all
others. How many of the sequence's tokens run in a step is decided in policies.py.
"""

from collections.abc import Collection, Iterator
from itertools import islice

from router.request import EMBEDDED, Wish
from router.scheduler.fairness import Shares
from router.scheduler.fault_isolation import Trials
from router.scheduler.running import Running
from router.scheduler.sequence import Sequence, State
from router.scheduler.settings import Policy
from router.scheduler.static_groups import Groups
from router.scheduler.timeline import Cause
from router.scheduler.waiting_queue import Queue

LOOKED_AT = 64  # sequences of a tenant that are examined to find one that can start
ANYTHING, TEXTS = tuple(Wish), (Wish.TEXT,)
MOSTLY = 0.5  # fraction of its tokens that must be cached for a sequence to overtake others


class Turns:
    """Order in which waiting sequences start, and the check whether there is room for the first one."""

    def __init__(self, policy: Policy, queue: Queue, trials: Trials, shares: Shares, groups: Groups) -> None:
        self._policy = policy
        self._queue = queue
        self._trials = trials
        self._shares = shares
        self._groups = groups
        self._told: Sequence | None = None  # the last sequence turned away; its cause becomes QUEUE when another one is

    def start_empty(self, running: Running) -> None:
        self._running = running
        self._yielded: list[Sequence] = []  # recently preempted; `is_coming_back` filters out those queued again

    def add_yielded(self, yielded: list[Sequence]) -> None:
        self._yielded = [sequence for sequence in (*self._yielded, *yielded) if is_coming_back(sequence)]

    def wish(self, now: float) -> Wish:
        """Return the kind of the next step: that of the first sequence in turn.

        If that sequence generates text and has no room, requests for embeddings or labels, which need none, go first.
        """
        if not self._queue.num_embeds:
            return Wish.TEXT
        first = self._first(now, ANYTHING)
        if first is not None and first.request.wish is Wish.TEXT and self._no_room(first) is not None:
            first = self._first(now, EMBEDDED)
        return Wish.TEXT if first is None else first.request.wish

    def next(self, now: float, wish: Wish = Wish.TEXT) -> Sequence | None:
        """Return the next sequence of this kind to start; None while the first one in turn has no room."""
        if not len(self._queue):
            return None
        first = self._first(now, (wish,))
        if first is None:
            return None
        cause = self._no_room(first)
        if cause is not None:
            self.turn_away(first, cause, now)
            return None
        return self._cached_before(first, now) if wish is Wish.TEXT else first

    def below_its_share(self, now: float) -> list[Sequence]:
        """Return the sequences to preempt so that a tenant below its share can start another one; usually none."""
        if not self._shares.several or self._trials or not len(self._queue):
            return []
        first = self._first(now, TEXTS)
        if first is None or self._no_room(first) is None:
            return []
        return self._running.make_way(first)

    def turn_away(self, sequence: Sequence, cause: Cause, now: float) -> None:
        """Record the cause for which the first sequence in turn cannot start."""
        if self._told is not None and self._told is not sequence and self._told.state is State.WAITING:
            self._told.story.turn(Cause.QUEUE, now)
        self._told = sequence
        sequence.story.turn(cause, now)

    def is_stuck(self, sequence: Sequence) -> bool:
        return self._obstacle(sequence) is not None

    # -- internals

    def _first(self, now: float, wishes: Collection[Wish]) -> Sequence | None:
        """Return the first sequence of these kinds that waits for nothing but room."""
        suspects = self._trials.first(self.is_stuck)
        if suspects is not None:
            everyone = sorted(suspects.values(), key=lambda sequence: sequence.rank)
            return next((s for s in everyone if s.state is State.WAITING and s.request.wish in wishes
                         and not self.is_stuck(s)), None)
        first = None
        for tenant in self._shares.order(self._queue.tenants) if self._shares.several else self._queue.tenants:
            if first is None:
                first = next(self._startable(tenant, now, wishes), None)
            else:
                self._queue.of(tenant)[0].story.turn(Cause.TENANT, now)
        return first

    def _startable(self, tenant: str, now: float, wishes: Collection[Wish]) -> Iterator[Sequence]:
        readers = (sequence for sequence in self._queue.of(tenant)
                   if not sequence.held and sequence.request.wish in wishes)
        num_looked_at = 0
        for sequence in readers:
            cause = self._obstacle(sequence) or (Cause.PREFIX if self._running.waits_for_prefix(sequence) else None)
            if cause is None:
                yield sequence
            else:
                sequence.story.turn(cause, now)
            num_looked_at += cause is not Cause.GROUP or not self._groups.is_open
            if num_looked_at == LOOKED_AT:
                return

    def _obstacle(self, sequence: Sequence) -> Cause | None:
        """Return what blocks the sequence besides a lack of room."""
        if sequence.state is not State.WAITING:
            return None
        if sequence.held:
            return Cause.READER
        if sequence.lacks is not None:
            return Cause(sequence.lacks.kind)
        return None if self._groups.admits(sequence) else Cause.GROUP

    def _no_room(self, first: Sequence) -> Cause | None:
        if first.request.wish is not Wish.TEXT:
            return None  # requests for embeddings or labels enter no batch
        if len(self._running) >= self._policy.max_batch_size:
            return Cause.BATCH
        if not self._running.has_room(first):
            return Cause.BLOCKS
        tenant = first.request.tenant.name
        before = any(is_coming_back(s) and s.request.tenant.name == tenant and s.rank < first.rank
                     for s in self._yielded)
        return Cause.QUEUE if before else None

    def _cached_before(self, first: Sequence, now: float) -> Sequence:
        """Return a mostly cached sequence of the same tenant, to start before its blocks are evicted, else `first`."""
        if self._trials or now - first.arrival >= self._policy.passed_over_seconds or self._is_mostly_cached(first):
            return first
        knows = self._running.blocks.knows
        others = [s for s in islice(self._queue.of(first.request.tenant.name), LOOKED_AT)
                  if s.names and knows(s.names[0])]
        return next((s for s in others if self._is_mostly_cached(s) and self._may_start(s)), first)

    def _is_mostly_cached(self, sequence: Sequence) -> bool:
        return self._running.num_cached(sequence) >= MOSTLY * sequence.length

    def _may_start(self, sequence: Sequence) -> bool:
        return (not self.is_stuck(sequence) and not self._running.waits_for_prefix(sequence)
                and self._no_room(sequence) is None)


def is_coming_back(sequence: Sequence) -> bool:
    """Return whether a sequence is preempted, not queued again yet, and not held.

    Sequences of its tenant that are behind it in rank do not start before it.
    """
    return sequence.state is State.YIELDING and not sequence.held
