"""Policies: how prefill and decode are combined into steps.

`MixedPolicy` runs chunks of prompts together with the decodes, in one batch. `PausePolicy` prefills new sequences in a
batch and steps of their own, the prefill batch, and merges it into the decode batch afterwards. `RecomputePolicy` does
not reuse the KV cache. `StaticPolicy` (static_batching.py) lets only the members of a group start, and leaves their
steps to one of these. All see the scheduler only through `SchedulerView`, and return a `StepDraft`.
"""

from collections.abc import Callable
from typing import ClassVar, Protocol

from router.request import RequestKind
from router.scheduler.cost_model import CostModel
from router.scheduler.messages import Concat
from router.scheduler.prefill_budget import PrefillBudget, PrefillTimeAllowance
from router.scheduler.running_sequences import Batch, RunningSequences
from router.scheduler.sequence import Sequence, SequenceState
from router.scheduler.settings import SchedulerSettings
from router.scheduler.step import StepDraft, compute_decode_load
from router.scheduler.waiting_queue import WaitingQueue


class SchedulerView(Protocol):
    """The part of the scheduler that a policy may use."""

    settings: SchedulerSettings
    running: RunningSequences
    waiting: WaitingQueue
    cost_model: CostModel

    def next_request_kind(self) -> RequestKind: ...
    def peek_next_sequence(self, kind: RequestKind = RequestKind.GENERATE) -> Sequence | None: ...
    def num_waiting_for_room(self) -> int: ...
    def num_fitting(self) -> int: ...
    def start_sequence(self, candidate: Sequence) -> None: ...
    def record_over_budget(self, candidate: Sequence) -> None: ...
    def requeue_preempted(self, preempted: list[Sequence]) -> None: ...


class StepPolicy:
    """Base of the policies: allocates blocks for decodes and fits chunks of prompts into a budget."""

    reuses_cache: ClassVar[bool] = True  # whether sequences find blocks of others, and decode from their own
    pauses_decodes: bool = False  # whether prompts run in steps without the decodes
    wake_at: float | None = None  # when `prepare` must be called

    def __init__(self, scheduler: SchedulerView) -> None:
        self.scheduler = scheduler

    def draft_step(self) -> StepDraft:
        raise NotImplementedError

    def prepare(self, now: float) -> None:
        """Do what is due. Called before each step is drafted, and at `wake_at`."""

    def after_step(self) -> None:
        """React to a step that was drafted, whatever its kind."""

    def on_start(self, sequence: Sequence) -> None:
        """React to a sequence that was taken off the queue for the step that is being drafted."""

    def admits(self, sequence: Sequence) -> bool:  # noqa: ARG002
        """Return whether a waiting sequence may start, if there is room."""
        return True

    @property
    def is_open(self) -> bool:
        """Whether sequences that it does not admit should not be counted among those that are examined in a step."""
        return False

    def draft_decodes(self, decoding: list[Sequence], draft: StepDraft) -> None:
        draft.grants, preempted = self.scheduler.running.allocate_for_decodes(decoding)
        if preempted:
            self.scheduler.requeue_preempted(preempted)
            decoding = [s for s in decoding if s.state is SequenceState.RUNNING]
        draft.decoding = decoding

    def add_prompt_chunks(self, draft: StepDraft, budget: PrefillBudget,
                          may_start_next: Callable[[int], bool] = bool) -> bool:
        """Add chunks to the draft, unfinished prompts first; return whether the budget left a prompt out, be it one
        that is unfinished or that of a waiting sequence.

        `may_start_next` says, given the tokens left in the budget, whether another sequence may start: by default, if
        any are left.
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

    def token_budget(self, num_decodes: int = 0) -> PrefillBudget:
        """Return a budget of tokens alone, beside so many decodes."""
        return PrefillBudget(self.scheduler.settings.max_prefill_tokens - num_decodes,
                             self.scheduler.running.block_pool.block_size)


class MixedPolicy(StepPolicy):
    """Policy that runs chunks of prompts together with the decodes, in one batch."""

    def __init__(self, scheduler: SchedulerView) -> None:
        super().__init__(scheduler)
        self._prompt_time_allowance = PrefillTimeAllowance()

    def draft_step(self) -> StepDraft:
        running, draft = self.scheduler.running, StepDraft()
        # `is_ready_to_decode`, inline: this runs for every sequence in every step.
        self.draft_decodes([s for batch in running.batches for s in batch.sequences.values()
                            if s.num_sent_tokens >= s.num_initial_tokens], draft)
        draft.messages_before += running.take_pending_filters()
        draft.batch = running.batches[0] if running.batches else running.new_batch()
        if len(draft.decoding) < len(draft.batch.sequences) or self.scheduler.waiting.demand.num_sequences:
            left_prompt_out = self.add_prompt_chunks(draft, self._make_budget(draft, draft.batch))
            self._prompt_time_allowance.record_planned_step(left_out_all_prompts=left_prompt_out and not draft.chunks)
        else:
            self._prompt_time_allowance.reset()
        return draft

    def _make_budget(self, draft: StepDraft, batch: Batch) -> PrefillBudget:
        budget = self.token_budget(len(draft.decoding))
        if draft.decoding:
            draft.decode_load = compute_decode_load(draft.decoding)
            num_waiting = len(batch) - len(draft.decoding) + self.scheduler.num_fitting()
            allowance = self._prompt_time_allowance.update_allowance(
                draft.decode_load, num_waiting, self.scheduler.settings.max_stall_seconds, self.scheduler.cost_model)
            budget.limit_seconds(allowance, self.scheduler.cost_model)
        return budget


class PausePolicy(StepPolicy):
    """Policy that prefills new sequences in a batch of their own, the prefill batch, with steps of the decode batch in
    between, and then merges it into the decode batch.
    """

    pauses_decodes = True

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
        self.add_prompt_chunks(draft, self.token_budget(), may_start_next)
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


class RecomputePolicy(StepPolicy):
    """Policy that does not reuse the KV cache: each new token recomputes the prompt and all tokens generated so far.

    A sequence that got a token leaves its batch with the next step and enters it again, one token longer, as a
    preempted one would; so shards need no code for this policy. The cost of a step grows with the total length of its
    sequences. The policy is a baseline for comparisons.
    """

    reuses_cache = False

    def draft_step(self) -> StepDraft:
        running, draft = self.scheduler.running, StepDraft()
        returning = sorted((sequence for sequence in running if sequence.is_ready_to_decode),
                           key=lambda sequence: sequence.priority_key)
        for sequence in returning:
            running.remove_sequence(sequence, SequenceState.PREEMPTED)
        draft.messages_before += running.take_pending_filters()
        draft.batch = running.batches[0] if running.batches else running.new_batch()
        self._reenter_sequences(returning, draft)
        self.add_prompt_chunks(draft, self.token_budget())
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


POLICIES: dict[str, type[StepPolicy]] = {"mixed": MixedPolicy, "pause": PausePolicy, "recompute": RecomputePolicy}
