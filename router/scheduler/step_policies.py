"""Step policies: how prefill and decode are combined into steps.

`MixedPolicy` runs chunks of prompts together with the decodes, in one batch. `PausePolicy` prefills new sequences in a
batch and steps of their own, the prefill batch, and merges it into the decode batch afterwards.
`FullRecomputePolicy` does not reuse the KV cache. All see the scheduler only through `SchedulerView`, and return a
`StepDraft`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from router.request import RequestKind
from router.scheduler.batch import Batch
from router.scheduler.cost_model import CostModel, StepLoad
from router.scheduler.messages import (
    BlockGrant,
    Concat,
    Decode,
    Filter,
    NewSequence,
    PoolingStep,
    Prefill,
    PrefillChunk,
    ShardMessage,
)
from router.scheduler.prefill_budget import PrefillBudget, PrefillTimeAllowance, compute_chunk_load
from router.scheduler.running_sequences import RunningSequences
from router.scheduler.sequence import Sequence, SequenceState
from router.scheduler.settings import SchedulerSettings


class SchedulerView(Protocol):
    """The part of the scheduler that a policy may use."""

    settings: SchedulerSettings
    running: RunningSequences
    cost_model: CostModel

    def next_request_kind(self) -> RequestKind: ...
    def peek_next_sequence(self, kind: RequestKind = RequestKind.GENERATE) -> Sequence | None: ...
    def num_waiting_for_room(self) -> int: ...
    def num_fitting(self) -> int: ...
    def num_waiting_pooling(self) -> int: ...
    def start_sequence(self, candidate: Sequence) -> None: ...
    def record_over_budget(self, candidate: Sequence) -> None: ...
    def requeue_preempted(self, preempted: list[Sequence]) -> None: ...


@dataclass(slots=True)
class StepDraft:
    """A step being planned.

    The messages in `messages_before` are sent ahead of it. Without a batch there is no step, except for a pooling step,
    whose chunks are whole texts.
    """

    messages_before: list[Filter | Concat] = field(default_factory=list)
    batch: Batch | None = None
    decoding: list[Sequence] = field(default_factory=list)  # the ready sequences that decode in the step
    chunks: list[tuple[Sequence, int]] = field(default_factory=list)  # with the number of tokens of each
    new_sequences: list[NewSequence] = field(default_factory=list)
    grants: list[BlockGrant] = field(default_factory=list)
    has_turned_new_sequence_away: bool = False  # the budget had no tokens for a sequence that could start otherwise
    cached_decode_load: StepLoad | None = None  # load of the decodes without chunks, computed on demand
    kind: RequestKind = RequestKind.GENERATE  # kind of all its sequences

    def take_messages(self) -> list[ShardMessage]:
        """Return the messages of the draft. To be called once, and before `advance_sequences`: chunks begin where the
        sequences stand.
        """

        step = self._step_message()
        return [*self.messages_before, step] if step is not None else list(self.messages_before)

    def decode_load(self) -> StepLoad:
        """Return the load of the decodes without chunks. To be called before `advance_sequences`."""
        if self.cached_decode_load is None:
            self.cached_decode_load = compute_decode_load(self.decoding)
        return self.cached_decode_load

    @property
    def has_step(self) -> bool:
        return bool(self.chunks or self.decoding)

    def _step_message(self) -> Prefill | Decode | PoolingStep | None:
        if self.kind is not RequestKind.GENERATE:
            return PoolingStep(self.kind, tuple(self.new_sequences))
        if self.batch is None or not self.has_step:
            return None
        batch_id = self.batch.id
        grants = tuple(self.grants)
        keep = self._pop_own_filter(self.batch)
        if not self.chunks:
            return Decode(batch_id, grants, keep)
        chunks = tuple(PrefillChunk(s.id, s.num_sent_tokens, length) for s, length in self.chunks)
        return Prefill(batch_id, tuple(self.new_sequences), chunks, bool(self.decoding), grants, keep)

    def _pop_own_filter(self, batch: Batch) -> tuple[int, ...] | None:
        """Remove a Filter of the step's own batch from the end of `messages_before` and return what it keeps.

        The Filter is sent with the step, which saves a call.
        """
        last = self.messages_before[-1] if self.messages_before else None
        if not isinstance(last, Filter) or last.batch != batch.id:
            return None
        del self.messages_before[-1]
        return last.keep


class StepPolicy:
    """Base of the step policies: allocates blocks for decodes and fits chunks of prompts into a budget."""

    def __init__(self, scheduler: SchedulerView) -> None:
        self.scheduler = scheduler

    def draft_step(self) -> StepDraft:
        raise NotImplementedError

    def draft_decodes(self, decoding: list[Sequence], draft: StepDraft) -> None:
        draft.grants, preempted = self.scheduler.running.allocate_for_decodes(decoding)
        self.scheduler.requeue_preempted(preempted)
        draft.decoding = [s for s in decoding if s.state is SequenceState.RUNNING] if preempted else decoding

    def add_prompt_chunks(self, draft: StepDraft, budget: PrefillBudget, may_start_next: Callable[[int], bool]) -> bool:
        """Add chunks to the draft, unfinished prompts first; return whether the budget left a prompt out, be it one
        that is unfinished or that of a waiting sequence.

        `may_start_next` says, given the tokens left in the budget, whether another sequence may start.
        """

        assert draft.batch is not None
        # If all sequences of the batch decode, no prompt is unfinished.
        prompts = find_sequences_to_prefill(draft.batch) if len(draft.decoding) < len(draft.batch) else []
        for sequence in prompts:
            if not self._add_chunk(draft, budget, sequence):
                return True
        while may_start_next(budget.tokens) and (candidate := self.scheduler.peek_next_sequence()) is not None:
            cached = self.scheduler.running.count_cached_tokens(candidate)
            if not budget.max_chunk_length(cached, candidate.length - cached):
                self.scheduler.record_over_budget(candidate)
                draft.has_turned_new_sequence_away = True
                return True
            self.scheduler.start_sequence(candidate)
            draft.new_sequences.append(self.scheduler.running.enter_batch(candidate, draft.batch))
            self._add_chunk(draft, budget, candidate)
        return False

    def _add_chunk(self, draft: StepDraft, budget: PrefillBudget, sequence: Sequence) -> int:
        length = budget.max_chunk_length(sequence.num_sent_tokens,
                                         sequence.num_initial_tokens - sequence.num_sent_tokens)
        if length:
            budget.spend(sequence.num_sent_tokens, length)
            draft.chunks.append((sequence, length))
        return length

    def block_size(self) -> int:
        return self.scheduler.running.block_pool.block_size


class MixedPolicy(StepPolicy):
    """Policy that runs chunks of prompts together with the decodes, in one batch."""

    def __init__(self, scheduler: SchedulerView) -> None:
        super().__init__(scheduler)
        self._prompt_time_allowance = PrefillTimeAllowance()

    def draft_step(self) -> StepDraft:
        running, draft = self.scheduler.running, StepDraft()
        # `is_ready_to_decode`, inline: this runs for every sequence in every step.
        decoding = [s for batch in running.batches for s in batch if s.num_sent_tokens >= s.num_initial_tokens]
        self.draft_decodes(decoding, draft)
        draft.messages_before += running.take_pending_filters()
        draft.batch = running.batches[0] if running.batches else running.new_batch()
        left_prompt_out = self.add_prompt_chunks(draft, self._make_budget(draft, draft.batch),
                                                 lambda tokens: tokens > 0)
        self._prompt_time_allowance.record_planned_step(left_out_all_prompts=left_prompt_out and not draft.chunks)
        return draft

    def _make_budget(self, draft: StepDraft, batch: Batch) -> PrefillBudget:
        tokens_left = self.scheduler.settings.max_prefill_tokens - len(draft.decoding)
        if not draft.decoding:
            return PrefillBudget(tokens_left, self.block_size())
        num_waiting = len(batch) - len(draft.decoding) + self.scheduler.num_fitting()
        allowance = self._prompt_time_allowance.update_allowance(
            draft.decode_load(), num_waiting, self.scheduler.settings.max_stall_seconds, self.scheduler.cost_model)
        return PrefillBudget(tokens_left, self.block_size(), allowance.all_prompts, allowance.first_prompt,
                             allowance.single_block, self.scheduler.cost_model)


class PausePolicy(StepPolicy):
    """Policy that prefills new sequences in a batch of their own, the prefill batch, with steps of the decode batch in
    between, and then merges it into the decode batch.
    """

    def __init__(self, scheduler: SchedulerView) -> None:
        super().__init__(scheduler)
        self._prefill_batch: Batch | None = None
        self._decode_next = False
        self._num_decode_steps = 0  # decode steps since new sequences last started

    def draft_step(self) -> StepDraft:
        running, draft = self.scheduler.running, StepDraft()
        draft.messages_before += running.take_pending_filters()
        if self._prefill_batch not in running.batches:
            self._prefill_batch = None
        if self._prefill_batch is not None and not find_sequences_to_prefill(self._prefill_batch):
            self._merge_prefill_batch(draft)
        if not (self._decode_next and self._find_ready_sequences()):
            self._draft_prefill(draft)
        if not draft.chunks:
            self._draft_decode(draft)
        return draft

    def _draft_prefill(self, draft: StepDraft) -> None:
        """Continue the prompts of the prefill batch, or else start new sequences if they are due."""
        if self._prefill_batch is not None:
            self._draft_chunks(draft, self._prefill_batch, lambda _: False)
        elif self._should_start_prefill():
            self._start_new_sequences(draft)

    def _find_decode_batch(self) -> Batch | None:
        """Return the decode batch; None if there is none."""
        return next((batch for batch in self.scheduler.running.batches if batch is not self._prefill_batch), None)

    def _find_ready_sequences(self) -> list[Sequence]:
        """Return the ready sequences of the decode batch."""
        batch = self._find_decode_batch()
        return [sequence for sequence in batch if sequence.is_ready_to_decode] if batch is not None else []

    def _merge_prefill_batch(self, draft: StepDraft) -> None:
        if len(self.scheduler.running.batches) > 1:
            draft.messages_before.append(Concat(self.scheduler.running.concat_batches()))
        self._prefill_batch = None

    def _should_start_prefill(self) -> bool:
        settings = self.scheduler.settings
        num_running = len(self.scheduler.running)
        num_waiting = self.scheduler.num_waiting_for_room()
        if not num_waiting:
            return False
        enough = num_waiting >= max(1, int(num_running * settings.waiting_served_ratio))
        return not num_running or enough or self._num_decode_steps >= settings.max_waiting_tokens

    def _start_new_sequences(self, draft: StepDraft) -> None:
        if self.scheduler.peek_next_sequence() is None:
            return
        self._prefill_batch = self.scheduler.running.new_batch()
        self._num_decode_steps = 0
        full_budget = self.scheduler.settings.max_prefill_tokens
        self._draft_chunks(draft, self._prefill_batch, lambda left: self._fits_uncut(left, full_budget))

    def _fits_uncut(self, tokens_left: int, full_budget: int) -> bool:
        """Return whether the next prompt fits uncut, or is the step's first, which is cut if it exceeds the budget."""
        candidate = self.scheduler.peek_next_sequence()
        if candidate is None:
            return False
        return (tokens_left == full_budget
                or candidate.length - self.scheduler.running.count_cached_tokens(candidate) <= tokens_left)

    def _draft_chunks(self, draft: StepDraft, batch: Batch, may_start_next: Callable[[int], bool]) -> None:
        draft.batch = batch
        self.add_prompt_chunks(draft, PrefillBudget(self.scheduler.settings.max_prefill_tokens, self.block_size()),
                               may_start_next)
        self._decode_next = True

    def _draft_decode(self, draft: StepDraft) -> None:
        self._decode_next = False
        ready = self._find_ready_sequences()
        if ready:
            self._num_decode_steps += 1
            self.draft_decodes(ready, draft)
            draft.messages_before += self.scheduler.running.take_pending_filters()
            draft.batch = self._find_decode_batch()


def find_sequences_to_prefill(batch: Batch) -> list[Sequence]:
    return [sequence for sequence in batch if not sequence.is_ready_to_decode]


def compute_decode_load(decoding: list[Sequence]) -> StepLoad:
    """Return the load of decoding one token per sequence. To be called before `advance_sequences`."""
    return StepLoad(rows=len(decoding), context=sum([s.length + s.num_outputs_in_flight for s in decoding]))


def compute_step_load(draft: StepDraft) -> StepLoad:
    """Return the load of the drafted step. To be called before `advance_sequences`."""
    decode_load = draft.decode_load()
    chunks = [compute_chunk_load(sequence.num_sent_tokens, length) for sequence, length in draft.chunks]
    context = decode_load.context + sum(chunk.context for chunk in chunks)
    return StepLoad(decode_load.rows + len(chunks), sum(chunk.chunk_tokens for chunk in chunks), context)


class FullRecomputePolicy(StepPolicy):
    """Policy that does not reuse the KV cache: each new token recomputes the prompt and all tokens generated so far.

    A sequence that got a token leaves its batch with the next step and enters it again, one token longer, as a
    preempted one would; so shards need no code for this policy. The cost of a step grows with the total length of its
    sequences. The policy is a baseline for comparisons.
    """

    def draft_step(self) -> StepDraft:
        running, draft = self.scheduler.running, StepDraft()
        returning = sorted((sequence for sequence in running if sequence.is_ready_to_decode),
                           key=lambda sequence: sequence.priority_key)
        for sequence in returning:
            running.remove_sequence(sequence, SequenceState.PREEMPTED)
        draft.messages_before += running.take_pending_filters()
        draft.batch = running.batches[0] if running.batches else running.new_batch()
        self._reenter_sequences(returning, draft)
        self.add_prompt_chunks(draft, PrefillBudget(self.scheduler.settings.max_prefill_tokens, self.block_size()),
                               lambda left: left > 0)
        return draft

    def _reenter_sequences(self, returning: list[Sequence], draft: StepDraft) -> None:
        """Enter the sequences in priority order up to the first that does not fit with its new token; the rest wait.

        Their chunks are added by `add_prompt_chunks`.
        """

        assert draft.batch is not None
        running = self.scheduler.running
        for index, sequence in enumerate(returning):
            if not running.can_reenter(sequence):
                self.scheduler.requeue_preempted(returning[index:])
                return
            draft.new_sequences.append(running.enter_batch(sequence, draft.batch))
