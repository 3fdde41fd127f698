"""Selection of the next waiting sequence to start; records for the others why they wait.

The tenant that has received least goes first. Within a tenant the highest priority goes first, unless a later sequence
finds most of its prompt in the cache and the first one has not waited for long. After failed steps, suspects go first.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from router.request import POOLING_KINDS, RequestKind
from router.scheduler.batching_policies import StepPolicy
from router.scheduler.fault_isolation import FaultIsolation
from router.scheduler.running_sequences import RunningSequences
from router.scheduler.sequence import RequestPhase, Sequence, SequenceState
from router.scheduler.settings import SchedulerSettings
from router.scheduler.waiting_queue import FairShares, WaitingQueue

MAX_EXAMINED_SEQUENCES = 64  # sequences of a tenant that are examined to find one that can start
MIN_CACHED_FRACTION = 0.5  # fraction of its tokens that must be cached for a sequence to overtake others


@dataclass(slots=True, eq=False, repr=False)
class WaitingSequenceSelector:
    """Picks the next waiting sequence to start. A candidate waits for nothing but room in the batch and the cache."""

    _settings: SchedulerSettings
    _queue: WaitingQueue
    _running: RunningSequences
    _fault_isolation: FaultIsolation
    _fair_shares: FairShares
    policy: StepPolicy = field(init=False)  # may refuse sequences; made anew whenever the shards' state is reset
    now: float = 0.0  # time at which the present step is planned, or the last one was
    preempted: list[Sequence] = field(default_factory=list)  # recently; without those that are queued again
    _last_turned_away: Sequence | None = None  # its phase becomes QUEUE when another one is turned away
    # In the phase FAULT_ISOLATION, unless they left it.
    _waiting_for_suspects: dict[int, Sequence] = field(default_factory=dict)

    def add_preempted(self, preempted: Collection[Sequence] = ()) -> None:
        """Add sequences that were just preempted, and drop those that are no longer waited for."""
        self.preempted = [sequence for sequence in (*self.preempted, *preempted) if is_awaiting_requeue(sequence)]

    def next_request_kind(self) -> RequestKind:
        """Return the kind of the next step: that of the first sequence in turn.

        If that sequence generates text and has no room, requests for embeddings or labels, which need none, go first.
        """
        if not self._queue.num_pooling:
            return RequestKind.GENERATE
        first = self._first_candidate(tuple(RequestKind))
        if first is not None and first.request.kind is RequestKind.GENERATE and self._why_no_room(first) is not None:
            first = self._first_candidate(POOLING_KINDS)
        return RequestKind.GENERATE if first is None else first.request.kind

    def peek_next_sequence(self, kind: RequestKind = RequestKind.GENERATE) -> Sequence | None:
        """Return, without removing it, the next sequence of this kind that can start; record for others why they wait.

        Return None while the first candidate has no room.
        """
        first = self._first_candidate((kind,)) if self._queue.demand.num_sequences else None
        if first is None:
            return None
        phase = self._why_no_room(first)
        if phase is not None:
            self.record_turned_away(first, phase)
            return None
        return self._prefer_cached(first) if kind is RequestKind.GENERATE else first

    def find_fair_preemptions(self) -> list[Sequence]:
        """Return the sequences to preempt so that a tenant below its share can start another one; usually none."""
        if self._fault_isolation.suspect_sets or not self._queue.demand.num_sequences:
            return []
        first = self._first_candidate((RequestKind.GENERATE,))
        if first is None or self._why_no_room(first) is None:
            return []
        return self._running.choose_fair_preemptions(first)

    def record_turned_away(self, sequence: Sequence, phase: RequestPhase) -> None:
        """Record the phase in which the first candidate waits, since it cannot start."""
        if (self._last_turned_away is not None and self._last_turned_away is not sequence
            and self._last_turned_away.state is SequenceState.WAITING):
            self._last_turned_away.timeline.enter_phase(RequestPhase.QUEUE, self.now)
        self._last_turned_away = sequence
        sequence.timeline.enter_phase(phase, self.now)

    def cannot_start_even_with_room(self, sequence: Sequence) -> bool:
        """Return whether the sequence waits and could not start even if there was room."""
        return self._why_not_startable(sequence) is not None

    def is_startable(self, sequence: Sequence) -> bool:
        """Return whether the sequence waits to generate text and could start if there was room."""
        return (sequence.state is SequenceState.WAITING and sequence.request.kind is RequestKind.GENERATE
                and not self.cannot_start_even_with_room(sequence))

    def count_startable(self) -> int:
        """Return how many waiting sequences could start to generate text if there was room."""
        suspects = self._suspects_allowed_to_start()
        if suspects is None:
            return self.policy.count_admissible()
        return sum(map(self.is_startable, suspects.values()))

    # -- turns of tenants

    @property
    def has_several_tenants(self) -> bool:
        return self._fair_shares.has_several_tenants

    def sort_by_tenant_turn(self, sequences: list[Sequence]) -> list[Sequence]:
        """Sort sequences by tenant, the one that has received least first."""
        if not self._fair_shares.has_several_tenants or len(sequences) < 2:
            return sequences
        return sorted(sequences, key=lambda sequence: self._fair_shares.turn_key(sequence.request.tenant.name))

    def may_overtake_unfinished_prompt(self, candidate: Sequence, unfinished: Sequence) -> bool:
        """Return whether a sequence goes before an unfinished prompt: it has less to compute, and belongs to a tenant
        that has received less."""
        num_left = unfinished.num_tokens_to_prefill - unfinished.num_scheduled_tokens
        return (self._fair_shares.has_received_less(candidate.request.tenant.name, unfinished.request.tenant.name)
                and candidate.length - self._running.count_prefix_hit_tokens(candidate) < num_left)

    # -- internals

    def _suspects_allowed_to_start(self) -> Mapping[int, Sequence] | None:
        """Return the suspects that alone may start now, or None if all sequences may."""
        return (self._fault_isolation.suspects_allowed_to_start(self.cannot_start_even_with_room)
                if self._fault_isolation.suspect_sets else None)

    def _first_candidate(self, kinds: Collection[RequestKind]) -> Sequence | None:
        suspects = self._suspects_allowed_to_start()
        if suspects is not None:
            self._record_fault_isolation(suspects)
            by_priority = sorted(suspects.values(), key=lambda sequence: sequence.priority_key)
            return next((s for s in by_priority if s.state is SequenceState.WAITING and s.request.kind in kinds
                         and not self.cannot_start_even_with_room(s)), None)
        if self._waiting_for_suspects:
            for sequence in self._waiting_for_suspects.values():
                if (sequence.state is SequenceState.WAITING
                    and sequence.timeline.phase is RequestPhase.FAULT_ISOLATION):
                    sequence.timeline.enter_phase(sequence.waiting_phase, self.now)
            self._waiting_for_suspects.clear()
        first = None
        for tenant in (self._fair_shares.sort_tenants(self._queue.tenants) if self._fair_shares.has_several_tenants
                       else self._queue.tenants):
            if first is None:
                first = next(self._iter_candidates(tenant, kinds), None)
            else:
                waiting = self._queue.get_runnable_sequences(tenant)
                waiting[0].timeline.enter_phase(RequestPhase.OTHER_TENANTS, self.now)
        return first

    def _record_fault_isolation(self, suspects: Mapping[int, Sequence]) -> None:
        """Record for the first sequence of each tenant that it waits for the suspects, unless it is one."""
        for tenant in self._queue.tenants:
            first = self._queue.get_runnable_sequences(tenant)[0]
            if first.id not in suspects:
                self._waiting_for_suspects[first.id] = first
                first.timeline.enter_phase(RequestPhase.FAULT_ISOLATION, self.now)

    def _iter_candidates(self, tenant: str, kinds: Collection[RequestKind]) -> Iterator[Sequence]:
        num_examined = 0
        for sequence in self._queue.get_runnable_sequences(tenant):
            if sequence.request.kind not in kinds:
                continue
            phase = self._why_not_startable(sequence) or (
                RequestPhase.SHARED_PREFIX if self._running.is_waiting_for_prefix(sequence) else None)
            if phase is None:
                yield sequence
            else:
                sequence.timeline.enter_phase(phase, self.now)
            # The members of an open group may be anywhere in the queue, so that others do not count.
            is_beside_open_group = phase is RequestPhase.STATIC_GROUP and self.policy.num_places_left > 0
            num_examined += not is_beside_open_group
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

    def _prefer_cached(self, first: Sequence) -> Sequence:
        """Return a mostly cached sequence of the same tenant, to start before its blocks are evicted, else `first`."""
        waited_seconds = self.now - first.submitted_at
        if (self._fault_isolation.suspect_sets or waited_seconds >= self._settings.max_passed_over_seconds
            or self._is_mostly_cached(first)):
            return first
        is_cached = self._running.block_pool.is_cached
        candidates = [s for s in islice(self._queue.get_runnable_sequences(first.request.tenant.name),
                                        MAX_EXAMINED_SEQUENCES) if s.block_hashes and is_cached(s.block_hashes[0])]
        return next((s for s in candidates if self._is_mostly_cached(s) and not self.cannot_start_even_with_room(s)
                     and not self._running.is_waiting_for_prefix(s) and self._why_no_room(s) is None), first)

    def _is_mostly_cached(self, sequence: Sequence) -> bool:
        return self._running.count_prefix_hit_tokens(sequence) >= MIN_CACHED_FRACTION * sequence.length


def is_awaiting_requeue(sequence: Sequence) -> bool:
    """Return whether a sequence is preempted, not queued again yet, and not suspended.

    Sequences of its tenant that are behind it in priority order do not start before it.
    """
    return sequence.state is SequenceState.PREEMPTED and not sequence.is_suspended
