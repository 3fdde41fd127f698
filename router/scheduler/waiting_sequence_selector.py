"""Selection of the next waiting sequence to start; records for the others why they wait.

The tenant that has received least goes first. Within a tenant the highest priority goes first, unless a later sequence
finds most of its prompt in the cache and the first one has not waited for long. After failed steps, suspects go before
all others. How many of the sequence's tokens run in a step is decided in policies.py.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import islice

from router.request import POOLING_KINDS, RequestKind
from router.scheduler.fault_isolation import FaultIsolation
from router.scheduler.policies import StepPolicy
from router.scheduler.running_sequences import RunningSequences
from router.scheduler.sequence import RequestPhase, Sequence, SequenceState
from router.scheduler.settings import SchedulerSettings
from router.scheduler.waiting_queue import FairShares, WaitingQueue

MAX_EXAMINED_SEQUENCES = 64  # sequences of a tenant that are examined to find one that can start
ALL_KINDS, GENERATION_KINDS = tuple(RequestKind), (RequestKind.GENERATE,)
MIN_CACHED_FRACTION = 0.5  # fraction of its tokens that must be cached for a sequence to overtake others


class WaitingSequenceSelector:
    """Picks the next waiting sequence to start.

    A candidate is a sequence that waits for nothing but room in the batch and the cache.
    """

    __slots__ = ("_fair_shares", "_fault_isolation", "_last_turned_away", "_queue", "_running",
                 "_settings", "_waiting_for_suspects", "policy", "preempted")

    policy: StepPolicy  # may refuse sequences; set whenever the shards' state is reset, and at the start

    def __init__(self, settings: SchedulerSettings, queue: WaitingQueue, running: RunningSequences,
                 fault_isolation: FaultIsolation, fair_shares: FairShares) -> None:
        self._settings = settings
        self._queue = queue
        self._running = running
        self._fault_isolation = fault_isolation
        self._fair_shares = fair_shares
        self.preempted: list[Sequence] = []  # recently preempted; `is_awaiting_requeue` filters out those queued again
        # the last sequence turned away; its phase becomes QUEUE when another one is
        self._last_turned_away: Sequence | None = None
        self._waiting_for_suspects: dict[int, Sequence] = {}  # in the phase FAULT_ISOLATION, unless they left it

    def reset(self, policy: StepPolicy) -> None:
        """Begin with other shards: nothing runs or is preempted."""
        self.policy = policy
        self.preempted = []

    def add_preempted(self, preempted: Collection[Sequence] = ()) -> None:
        """Add sequences that were just preempted, and drop those that are no longer waited for."""
        self.preempted = [sequence for sequence in (*self.preempted, *preempted) if is_awaiting_requeue(sequence)]

    def next_request_kind(self, now: float) -> RequestKind:
        """Return the kind of the next step: that of the first sequence in turn.

        If that sequence generates text and has no room, requests for embeddings or labels, which need none, go first.
        """
        if not self._queue.num_pooling:
            return RequestKind.GENERATE
        first = self._first_candidate(now, ALL_KINDS)
        if first is not None and first.request.kind is RequestKind.GENERATE and self._why_no_room(first) is not None:
            first = self._first_candidate(now, POOLING_KINDS)
        return RequestKind.GENERATE if first is None else first.request.kind

    def peek_next_sequence(self, now: float, kind: RequestKind = RequestKind.GENERATE) -> Sequence | None:
        """Return, without removing it, the next sequence of this kind that can start; record for others why they wait.

        Return None while the first candidate has no room.
        """

        if not len(self._queue):
            return None
        first = self._first_candidate(now, (kind,))
        if first is None:
            return None
        phase = self._why_no_room(first)
        if phase is not None:
            self.record_turned_away(first, phase, now)
            return None
        return self._prefer_cached(first, now) if kind is RequestKind.GENERATE else first

    def find_fair_preemptions(self, now: float) -> list[Sequence]:
        """Return the sequences to preempt so that a tenant below its share can start another one; usually none."""
        if self._fault_isolation.suspect_sets or not len(self._queue):
            return []
        first = self._first_candidate(now, GENERATION_KINDS)
        if first is None or self._why_no_room(first) is None:
            return []
        return self._running.choose_fair_preemptions(first)

    def record_turned_away(self, sequence: Sequence, phase: RequestPhase, now: float) -> None:
        """Record the phase in which the first candidate waits, since it cannot start."""
        if (self._last_turned_away is not None and self._last_turned_away is not sequence
            and self._last_turned_away.state is SequenceState.WAITING):
            self._last_turned_away.timeline.enter_phase(RequestPhase.QUEUE, now)
        self._last_turned_away = sequence
        sequence.timeline.enter_phase(phase, now)

    def is_unstartable(self, sequence: Sequence) -> bool:
        """Return whether the sequence waits and could not start even if there was room."""
        return self._why_not_startable(sequence) is not None

    # -- internals

    def _first_candidate(self, now: float, kinds: Collection[RequestKind]) -> Sequence | None:
        """Return the first candidate of these kinds."""
        suspects = (self._fault_isolation.current_suspects(self.is_unstartable) if self._fault_isolation.suspect_sets
                    else None)
        if suspects is not None:
            self._record_fault_isolation(suspects, now)
            by_priority = sorted(suspects.values(), key=lambda sequence: sequence.priority_key)
            return next((s for s in by_priority if s.state is SequenceState.WAITING and s.request.kind in kinds
                         and not self.is_unstartable(s)), None)
        if self._waiting_for_suspects:
            self._record_end_of_fault_isolation(now)
        first = None
        for tenant in (self._fair_shares.sort_tenants(self._queue.tenants) if self._fair_shares.has_competition
                       else self._queue.tenants):
            if first is None:
                first = next(self._iter_candidates(tenant, now, kinds), None)
            else:
                self._queue.get_sequences_not_set_aside(tenant)[0].timeline.enter_phase(RequestPhase.OTHER_TENANTS, now)
        return first

    def _record_fault_isolation(self, suspects: Mapping[int, Sequence], now: float) -> None:
        """Record for the first sequence of each tenant that it waits for the suspects, unless it is one."""
        for tenant in self._queue.tenants:
            first = next((s for s in self._queue.get_sequences_not_set_aside(tenant) if not s.is_suspended), None)
            if first is not None and first.id not in suspects:
                self._waiting_for_suspects[first.id] = first
                first.timeline.enter_phase(RequestPhase.FAULT_ISOLATION, now)

    def _record_end_of_fault_isolation(self, now: float) -> None:
        for sequence in self._waiting_for_suspects.values():
            if (sequence.state is SequenceState.WAITING
                and sequence.timeline.phase is RequestPhase.FAULT_ISOLATION):
                sequence.timeline.enter_phase(sequence.waiting_phase, now)
        self._waiting_for_suspects.clear()

    def _iter_candidates(self, tenant: str, now: float, kinds: Collection[RequestKind]) -> Iterator[Sequence]:
        unsuspended = (sequence for sequence in self._queue.get_sequences_not_set_aside(tenant)
                       if not sequence.is_suspended and sequence.request.kind in kinds)
        num_examined = 0
        for sequence in unsuspended:
            phase = self._why_not_startable(sequence) or (
                RequestPhase.SHARED_PREFIX if self._running.is_waiting_for_prefix(sequence) else None)
            if phase is None:
                yield sequence
            else:
                sequence.timeline.enter_phase(phase, now)
            num_examined += phase is not RequestPhase.STATIC_GROUP or not self.policy.is_open
            if num_examined == MAX_EXAMINED_SEQUENCES:
                return

    def _why_not_startable(self, sequence: Sequence) -> RequestPhase | None:
        """Return what the sequence waits for besides room and a prefix; None if nothing, or if it does not wait."""
        if sequence.state is not SequenceState.WAITING:
            return None
        if sequence.is_suspended:
            return RequestPhase.SLOW_CLIENT
        if sequence.missing_resource is not None:
            return RequestPhase(sequence.missing_resource.kind)
        return None if self.policy.admits(sequence) else RequestPhase.STATIC_GROUP

    def _why_no_room(self, first: Sequence) -> RequestPhase | None:
        if first.request.kind is not RequestKind.GENERATE:
            return None  # requests for embeddings or labels enter no batch
        if len(self._running) >= self._settings.max_batch_size:
            return RequestPhase.BATCH_FULL
        if not self._running.has_room_for(first):
            return RequestPhase.NO_FREE_BLOCKS
        tenant = first.request.tenant.name
        has_returning_before = any(is_awaiting_requeue(s) and s.request.tenant.name == tenant
                                   and s.priority_key < first.priority_key for s in self.preempted)
        return RequestPhase.QUEUE if has_returning_before else None

    def _prefer_cached(self, first: Sequence, now: float) -> Sequence:
        """Return a mostly cached sequence of the same tenant, to start before its blocks are evicted, else `first`."""
        if (self._fault_isolation.suspect_sets or now - first.submitted_at >= self._settings.max_passed_over_seconds
            or self._is_mostly_cached(first)):
            return first
        is_cached = self._running.block_pool.is_cached
        candidates = [s for s in islice(self._queue.get_sequences_not_set_aside(first.request.tenant.name),
                                        MAX_EXAMINED_SEQUENCES) if s.block_hashes and is_cached(s.block_hashes[0])]
        return next((s for s in candidates if self._is_mostly_cached(s) and self._can_start(s)), first)

    def _is_mostly_cached(self, sequence: Sequence) -> bool:
        return self._running.count_cached_tokens(sequence) >= MIN_CACHED_FRACTION * sequence.length

    def _can_start(self, sequence: Sequence) -> bool:
        return (not self.is_unstartable(sequence) and not self._running.is_waiting_for_prefix(sequence)
                and self._why_no_room(sequence) is None)


def is_awaiting_requeue(sequence: Sequence) -> bool:
    """Return whether a sequence is preempted, not queued again yet, and not suspended.

    Sequences of its tenant that are behind it in priority order do not start before it.
    """
    return sequence.state is SequenceState.PREEMPTED and not sequence.is_suspended
