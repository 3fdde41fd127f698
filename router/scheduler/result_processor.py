"""Processing of the shards' results: accepts tokens, ends sequences, adds computed blocks to the prefix cache."""

from collections.abc import Mapping
from collections.abc import Sequence as GenericSequence

from router.request import FinishReason, Request, RequestKind
from router.scheduler.events import SchedulerEvent, TokensGenerated
from router.scheduler.fairness import COST_PER_GENERATED_TOKEN, FairShares
from router.scheduler.fault_isolation import FaultIsolation
from router.scheduler.messages import StepResult
from router.scheduler.request_timeline import RequestPhase
from router.scheduler.running_sequences import RunningSequences
from router.scheduler.sequence import Sequence, SequenceState
from router.scheduler.sequence_table import SequenceTable
from router.scheduler.step import StepInFlight


class ResultProcessor:
    """Applies a step's result to its sequences: appends tokens, caches computed blocks, and finishes or fails
    sequences.
    """

    def __init__(self, sequences: SequenceTable, running: RunningSequences, fair_shares: FairShares,
                 fault_isolation: FaultIsolation) -> None:
        self._sequences = sequences
        self._running = running
        self._fair_shares = fair_shares
        self._fault_isolation = fault_isolation

    def apply_result(self, step: StepInFlight, result: StepResult, stop_token_counts: Mapping[int, int],
                     now: float) -> list[SchedulerEvent]:
        """Apply the answer to this step; return the events.

        `stop_token_counts` maps the sequences whose text has just reached a stop string to the number of this answer's
        tokens that count.
        """
        if step.kind is not RequestKind.GENERATE:
            return self._finish_pooling(step, result.failures, now)
        token_counts: dict[int, int] = {}
        events: list[SchedulerEvent] = [TokensGenerated(token_counts)] if step.members_with_output else []
        rows, failures = result.rows, result.failures
        for chunk_write in step.chunk_writes:
            if chunk_write.is_valid and chunk_write.sequence.id not in failures:
                self._record_computed_chunk(chunk_write.sequence, chunk_write.num_computed_tokens, now)
        for sequence in step.members_with_output:
            sequence.num_outputs_in_flight -= 1
            sequence_id = sequence.id
            if sequence.state is not SequenceState.FINISHED and sequence_id not in failures:
                token_counts[sequence_id] = self._accept_tokens(sequence, rows[sequence_id].tokens,
                                                                stop_token_counts.get(sequence_id), events, now)
                if sequence.state is SequenceState.PREEMPTED:
                    self._sequences.requeue_if_answered(sequence)
        if self._fault_isolation.suspect_sets:
            self._fault_isolation.clear_suspicions(token_counts)
        if not failures:
            return events
        return events + [self._sequences.fail(self._sequences[sequence_id], why, now)
                         for sequence_id, why in failures.items() if sequence_id in self._sequences]

    def _record_computed_chunk(self, sequence: Sequence, num_computed_tokens: int, now: float) -> None:
        """Record that a chunk was computed: the first `num_computed_tokens` tokens of the sequence are in the cache."""
        self._running.cache_full_blocks(sequence, num_computed_tokens)
        if num_computed_tokens >= sequence.num_initial_tokens:
            sequence.timeline.enter_phase(RequestPhase.DECODE, now)

    def _finish_pooling(self, step: StepInFlight, failures: Mapping[int, str], now: float) -> list[SchedulerEvent]:
        """Finish or fail all sequences of a pooling step, since it is their only one."""
        unfinished = [sequence for sequence in step.members if sequence.state is not SequenceState.FINISHED]
        return [self._sequences.fail(sequence, failures[sequence.id], now) if sequence.id in failures
                else self._sequences.finish(sequence, FinishReason.LENGTH, now) for sequence in unfinished]

    def _accept_tokens(self, sequence: Sequence, tokens: GenericSequence[int], stop_token_count: int | None,
                       events: list[SchedulerEvent], now: float) -> int:
        request = sequence.request
        num_accepted, reason = find_finish_point(request, len(sequence.generated), tokens, stop_token_count)
        sequence.generated += tokens if num_accepted == len(tokens) else tokens[:num_accepted]
        sequence.length += num_accepted
        sequence.num_shard_deaths = 0
        if self._fair_shares.has_competition:
            self._fair_shares.charge_tenant(request.tenant, COST_PER_GENERATED_TOKEN * num_accepted)
        if reason is None and now >= sequence.deadline:
            reason = FinishReason.TIMEOUT
        if reason is not None:
            events.append(self._sequences.finish(sequence, reason, now))
        return num_accepted


def find_finish_point(request: Request, num_generated: int, tokens: GenericSequence[int],
                      stop_token_count: int | None) -> tuple[int, FinishReason | None]:
    """Return how many of a row's tokens count, and the finish reason if the sequence ends with the last of them.

    No other code decides from tokens that a sequence is finished. If several reasons apply to one token, the length
    goes first, then the end token.
    """
    if len(tokens) == 1 and stop_token_count is None and num_generated + 1 < request.max_new_tokens:  # nearly always
        return 1, FinishReason.END_TOKEN if tokens[0] in request.end_tokens else None
    limit = min(len(tokens), request.max_new_tokens - num_generated,
                len(tokens) if stop_token_count is None else stop_token_count)
    for index in range(limit):
        if num_generated + index + 1 >= request.max_new_tokens:
            return index + 1, FinishReason.LENGTH
        if tokens[index] in request.end_tokens:
            return index + 1, FinishReason.END_TOKEN
    return limit, FinishReason.STOP_STRING if stop_token_count is not None else None
