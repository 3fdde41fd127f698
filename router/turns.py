"""Whose turn it is: chooses the next newcomer among those who wait, and says of others why it is not theirs.

Between tenants whoever got least goes first; within one the best rank, unless somebody behind finds its prompt in the
cache and the first has not been passed over for long. When steps failed, suspects go before all others. Knows nothing
of steps: how much of a newcomer runs is decided elsewhere.
"""

from collections.abc import Collection, Iterator
from itertools import islice

from router.groups import Groups
from router.policy import Policy
from router.queue import Queue
from router.request import EMBEDDED, Wish
from router.running import Running
from router.sequence import Sequence, State
from router.shares import Shares
from router.story import Cause
from router.trials import Trials

LOOKED_AT = 64  # how deep a newcomer is searched behind those that must wait for something else
ANYTHING, TEXTS = tuple(Wish), (Wish.TEXT,)
MOSTLY = 0.5  # of a prompt: who finds so much in the cache may go before others


class Turns:
    def __init__(self, policy: Policy, queue: Queue, trials: Trials, shares: Shares, groups: Groups) -> None:
        self._policy = policy
        self._queue = queue
        self._trials = trials
        self._shares = shares
        self._groups = groups
        self._told: Sequence | None = None  # who was told a cause of its own, since it was the first

    def start_empty(self, running: Running) -> None:
        self._running = running
        self._yielded: list[Sequence] = []  # of late; who still waits for tokens under way is found by its state

    def add_yielded(self, yielded: list[Sequence]) -> None:
        self._yielded = [sequence for sequence in (*self._yielded, *yielded) if is_coming_back(sequence)]

    def wish(self, now: float) -> Wish:
        """What the next step is for: whatever the first wants. Who needs no room goes before somebody who waits for
        it."""
        if not self._queue.num_embeds:
            return Wish.TEXT
        first = self._first(now, ANYTHING)
        if first is not None and first.request.wish is Wish.TEXT and self._no_room(first) is not None:
            first = self._first(now, EMBEDDED)
        return Wish.TEXT if first is None else first.request.wish

    def next(self, now: float, wish: Wish = Wish.TEXT) -> Sequence | None:
        """Who of those who want this starts next; nobody while there is no room for whoever is first."""
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
        """Who must yield so that a tenant which runs less than its share can start: nobody, mostly."""
        if not self._shares.several or self._trials or not len(self._queue):
            return []
        first = self._first(now, TEXTS)
        if first is None or self._no_room(first) is None:
            return []
        return self._running.make_way(first)

    def turn_away(self, sequence: Sequence, cause: Cause, now: float) -> None:
        """It is the first, and cannot start for this cause."""
        if self._told is not None and self._told is not sequence and self._told.state is State.WAITING:
            self._told.story.turn(Cause.QUEUE, now)
        self._told = sequence
        sequence.story.turn(cause, now)

    def is_stuck(self, sequence: Sequence) -> bool:
        return self._obstacle(sequence) is not None

    # -- the inside

    def _first(self, now: float, wishes: Collection[Wish]) -> Sequence | None:
        """The first that wants one of these and has nothing else to wait for than room."""
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
        """What it waits for that room alone does not give."""
        if sequence.state is not State.WAITING:
            return None
        if sequence.held:
            return Cause.READER
        if sequence.lacks is not None:
            return Cause(sequence.lacks.kind)
        return None if self._groups.admits(sequence) else Cause.GROUP

    def _no_room(self, first: Sequence) -> Cause | None:
        if first.request.wish is not Wish.TEXT:
            return None  # it enters no batch
        if len(self._running) >= self._policy.max_batch_size:
            return Cause.BATCH
        if not self._running.has_room(first):
            return Cause.BLOCKS
        tenant = first.request.tenant.name
        before = any(is_coming_back(s) and s.request.tenant.name == tenant and s.rank < first.rank
                     for s in self._yielded)
        return Cause.QUEUE if before else None

    def _cached_before(self, first: Sequence, now: float) -> Sequence:
        """Somebody of the same tenant who finds most of its prompt in the cache, before others take the place."""
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
    """It yielded and will wait again: nobody of its tenant who came later starts before it."""
    return sequence.state is State.YIELDING and not sequence.held
