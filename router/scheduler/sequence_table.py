"""Table of the unfinished sequences, with their deadlines: applies the results of steps to them, and ends them."""

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from router.request import FinishReason, Request, RequestKind
from router.scheduler.admission_control import WaitPredictor
from router.scheduler.events import SchedulerEvent, SequenceExpired, SequenceFailed, SequenceFinished, TokensGenerated
from router.scheduler.fault_isolation import FaultIsolation
from router.scheduler.loadable_resource_cache import LoadableResourceCache
from router.scheduler.running_sequences import RunningSequences
from router.scheduler.sequence import RequestPhase, Sequence, SequenceState
from router.scheduler.shard_messages import StepResult
from router.scheduler.step import UnansweredPlan, find_finish_point
from router.scheduler.waiting_queue import COST_PER_GENERATED_TOKEN, FairShares, WaitingQueue


@dataclass(slots=True, eq=False)
class DeadlineHeap:
    """Heap of sequences by deadline."""

    _heap: list[tuple[float, int, Sequence]] = field(default_factory=list)
    _sequence_ids: set[int] = field(default_factory=set)  # of the sequences in the heap

    def add(self, sequence: Sequence) -> None:
        """Add a sequence if it has a deadline and is not in the heap; `pop_expired` may have returned it before."""
        if sequence.deadline != inf and sequence.id not in self._sequence_ids:
            self._sequence_ids.add(sequence.id)
            heappush(self._heap, (sequence.deadline, sequence.id, sequence))

    def earliest_deadline(self) -> float | None:
        """Return the earliest deadline. Must have no side effects: it is also called outside recorded calls."""
        return self._heap[0][0] if self._heap else None

    def discard_finished(self) -> None:
        """Remove ended sequences from the top of the heap, so that its first one is unfinished."""
        while self._heap and self._heap[0][2].state is SequenceState.FINISHED:
            self._pop()

    def pop_expired(self, now: float) -> list[Sequence]:
        """Remove and return the sequences whose deadline has passed."""
        expired = []
        while (deadline := self.earliest_deadline()) is not None and deadline <= now:
            expired.append(self._pop())
            self.discard_finished()
        return expired

    def _pop(self) -> Sequence:
        _, sequence_id, sequence = heappop(self._heap)
        self._sequence_ids.remove(sequence_id)
        return sequence


@dataclass(slots=True, eq=False, repr=False)
class SequenceTable:
    """Unfinished sequences by id. Every sequence ends in `end_sequence`, whatever the reason."""

    _queue: WaitingQueue
    _running: RunningSequences
    _fault_isolation: FaultIsolation
    _fair_shares: FairShares
    _wait_forecast: WaitPredictor
    _resource_cache: LoadableResourceCache
    deadlines: DeadlineHeap = field(default_factory=DeadlineHeap)
    _last_id: int = 0
    _sequences: dict[int, Sequence] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def __contains__(self, sequence_id: int) -> bool:
        return sequence_id in self._sequences

    def __getitem__(self, sequence_id: int) -> Sequence:
        return self._sequences[sequence_id]

    def get(self, sequence_id: int) -> Sequence | None:
        return self._sequences.get(sequence_id)

    def create_sequence(self, request: Request, now: float) -> Sequence:
        self._last_id += 1
        sequence = Sequence(request, self._last_id, now, [*request.resumed_tokens])
        self._sequences[sequence.id] = sequence
        self._fair_shares.add_sequence(request.tenant)
        if request.needed_resources:
            self._resource_cache.add_sequence(sequence)
        self.deadlines.add(sequence)
        return sequence

    def apply_result(self, plan: UnansweredPlan, result: StepResult, stop_token_counts: Mapping[int, int],
                     now: float) -> list[SchedulerEvent]:
        """Apply the answer to this plan: append tokens, cache computed blocks, and finish or fail sequences."""
        rows, failures = result.rows, result.failures
        if plan.kind is not RequestKind.GENERATE:  # a pooling step is the only one of its sequences
            unfinished = [sequence for sequence in plan.members if sequence.state is not SequenceState.FINISHED]
            return [self.fail(sequence, failures[sequence.id], now) if sequence.id in failures
                    else self.finish(sequence, FinishReason.LENGTH, now) for sequence in unfinished]
        token_counts: dict[int, int] = {}
        events: list[SchedulerEvent] = [TokensGenerated(token_counts)] if plan.members_with_output else []
        for chunk_write in plan.chunk_writes:
            sequence, num_computed_tokens = chunk_write.sequence, chunk_write.num_computed_tokens
            if chunk_write.is_valid and sequence.id not in failures:
                self._running.cache_full_blocks(sequence, num_computed_tokens)
                if num_computed_tokens >= sequence.num_tokens_to_prefill:
                    sequence.timeline.enter_phase(RequestPhase.DECODE, now)
        for sequence in plan.members_with_output:
            sequence.num_outputs_in_flight -= 1
            sequence_id = sequence.id
            if sequence.state is not SequenceState.FINISHED and sequence_id not in failures:
                token_counts[sequence_id] = self._accept_tokens(sequence, rows[sequence_id].tokens,
                                                                stop_token_counts.get(sequence_id), events, now)
        if self._fault_isolation.suspect_sets:
            self._fault_isolation.clear_suspicions(token_counts)
        return events + [self.fail(self._sequences[sequence_id], why, now) for sequence_id, why in failures.items()
                         if sequence_id in self._sequences] if failures else events

    def _accept_tokens(self, sequence: Sequence, tokens: GenericSequence[int], stop_token_count: int | None,
                       events: list[SchedulerEvent], now: float) -> int:
        request = sequence.request
        num_accepted, reason = find_finish_point(request, len(sequence.generated), tokens, stop_token_count)
        sequence.generated += tokens if num_accepted == len(tokens) else tokens[:num_accepted]
        sequence.length += num_accepted
        sequence.num_shard_deaths = 0
        if self._fair_shares.has_several_tenants:
            self._fair_shares.charge_tenant(request.tenant, COST_PER_GENERATED_TOKEN * num_accepted)
        if reason is None and now >= sequence.deadline:
            reason = FinishReason.TIMEOUT
        if reason is not None:
            events.append(self.finish(sequence, reason, now))
        elif sequence.state is SequenceState.PREEMPTED:
            self.requeue_if_answered(sequence)
        return num_accepted

    def expire_sequences(self, now: float) -> list[SequenceFinished | SequenceExpired]:
        """End sequences whose deadline has passed: without a token they expire, waiting with tokens they finish.

        Others, which run with a token generated or in flight, finish with their next token.
        """
        events: list[SequenceFinished | SequenceExpired] = []
        for sequence in self.deadlines.pop_expired(now):
            if sequence.generated and sequence.state is SequenceState.WAITING:
                events.append(self.finish(sequence, FinishReason.TIMEOUT, now))
            elif not sequence.generated and not sequence.num_outputs_in_flight:
                reason = (f"no token within {now - sequence.submitted_at:.3f} seconds (x-request-timeout-ms): "
                          f"{sequence.timeline.phase}")
                self.end_sequence(sequence, now)
                events.append(SequenceExpired(sequence.id, reason))
        return events

    def requeue(self, sequence: Sequence) -> None:
        """Return the sequence to the queue with its tokens."""
        sequence.state = SequenceState.WAITING
        self._queue.push(sequence)
        self.deadlines.add(sequence)  # again, since `DeadlineHeap.pop_expired` may have removed it while it ran

    def requeue_if_answered(self, sequence: Sequence) -> None:
        """Return a preempted sequence to the queue if none of its tokens is in flight."""
        if sequence.state is SequenceState.PREEMPTED and not sequence.num_outputs_in_flight:
            self.requeue(sequence)

    def set_suspended(self, sequence: Sequence, *, is_suspended: bool) -> None:
        """Suspend or resume the sequence; if it waits, it changes its place in the queue."""
        if sequence.state is SequenceState.WAITING:
            self._queue.remove(sequence)
            sequence.is_suspended = is_suspended
            self._queue.push(sequence)
        else:
            sequence.is_suspended = is_suspended

    # -- ends

    def finish(self, sequence: Sequence, reason: FinishReason, now: float) -> SequenceFinished:
        self.end_sequence(sequence, now)
        if sequence.request.kind is RequestKind.GENERATE:
            self._wait_forecast.record_output_length(len(sequence.generated), sequence.request.max_new_tokens)
        return SequenceFinished(sequence.id, reason)

    def fail(self, sequence: Sequence, reason: str, now: float) -> SequenceFailed:
        self.end_sequence(sequence, now)
        return SequenceFailed(sequence.id, reason)

    def end_sequence(self, sequence: Sequence, now: float) -> None:
        if sequence.state is SequenceState.WAITING:
            self._queue.remove(sequence)
        elif sequence.state is SequenceState.RUNNING:
            self._running.remove_sequence(sequence, SequenceState.FINISHED)
        elif sequence.state is SequenceState.FINISHING:
            self._running.free_blocks(sequence)
        if self._fault_isolation.suspect_sets:
            self._fault_isolation.clear_suspicions([sequence.id])
        sequence.state = SequenceState.FINISHED
        sequence.timeline.end(now)
        self._fair_shares.remove_sequence(sequence.request.tenant)
        if sequence.request.needed_resources:
            self._resource_cache.remove_sequence(sequence)
        self.deadlines.discard_finished()
        del self._sequences[sequence.id]
