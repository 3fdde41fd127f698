"""Pooling steps: texts that are run as a whole, for embeddings or labels of their tokens.

Such a text cannot be cut, takes no blocks and enters no batch. The first sequence in turn decides the kind of a step,
but between two pooling steps running sequences get a step of their own. While sequences decode, pooling shares the
time with the decodes as prompts do (`PrefillTimeAllowance`), except that the whole pooling step counts as added time.
"""

from typing import TYPE_CHECKING

from router.request import RequestKind
from router.scheduler.cost_model import StepLoad
from router.scheduler.messages import NewSequence
from router.scheduler.policies import PrefillBudget, PrefillTimeAllowance
from router.scheduler.sequence import RequestPhase, SequenceState
from router.scheduler.step import StepDraft, compute_decode_load

if TYPE_CHECKING:
    from router.scheduler.scheduler import Scheduler

BUDGET_BLOCK_SIZE = 1  # block size for the budget: a text takes no blocks


class PoolingPolicy:
    """Policy that drafts pooling steps: whether one is due, and which waiting texts fit into it."""

    __slots__ = ("_last_step_was_pooling", "_prompt_time_allowance", "is_active", "scheduler")

    def __init__(self, scheduler: "Scheduler") -> None:
        self.scheduler = scheduler
        self.is_active = False  # whether texts waited when `draft_step` was last called
        self._last_step_was_pooling = False  # the step before was a pooling step
        self._prompt_time_allowance = PrefillTimeAllowance()

    def draft_step(self) -> StepDraft | None:
        """Return a pooling step; None if the next step generates text. To be called while texts wait, and once after
        that (`is_active`)."""
        self.is_active = bool(self.scheduler.waiting.num_pooling)
        kind = self.scheduler.selector.next_request_kind()
        if not self.is_active:
            self._prompt_time_allowance.decode_seconds_since_prefill = 0.0
        may_pool = kind is not RequestKind.GENERATE and not (self._last_step_was_pooling
                                                             and len(self.scheduler.running))
        draft = self._draft_pooling_step(kind) if may_pool else None
        self._last_step_was_pooling = draft is not None
        return draft

    def _draft_pooling_step(self, kind: RequestKind) -> StepDraft | None:
        draft = StepDraft(kind=kind)
        budget = self._make_budget()
        max_sequences, selector = self.scheduler.settings.max_batch_size, self.scheduler.selector
        while len(draft.chunks) < max_sequences and (sequence := selector.peek_next_sequence(kind)) is not None:
            if budget.max_chunk_length(0, sequence.length) < sequence.length:
                selector.record_turned_away(sequence, RequestPhase.PREFILL_BUDGET)
                draft.has_turned_new_sequence_away = True
                break
            self.scheduler.start_sequence(sequence)
            # Its only step: it enters no batch and holds no blocks.
            sequence.state = SequenceState.FINISHING
            draft.new_sequences.append(NewSequence(sequence.id, sequence.request, (), ()))
            draft.chunks.append((sequence, sequence.length))
            budget.spend(0, sequence.length)
        if not draft.has_turned_new_sequence_away or draft.chunks:
            self._prompt_time_allowance.decode_seconds_since_prefill = 0.0
        return draft if draft.chunks else None

    def _make_budget(self) -> PrefillBudget:
        """Return the budget of a pooling step.

        The constant cost of the step counts as added time too, since the whole step delays the decodes.
        """
        settings, cost_model = self.scheduler.settings, self.scheduler.cost_model
        decode_load = compute_decode_load([sequence for sequence in self.scheduler.running
                                           if sequence.is_ready_to_decode])
        if not decode_load.rows:
            return PrefillBudget(settings.max_prefill_tokens, BUDGET_BLOCK_SIZE)
        # 0: the ratio waiting / decoding applies to sequences that generate text only.
        allowance = self._prompt_time_allowance.update_allowance(decode_load, 0, settings.max_stall_seconds, cost_model)
        # A text cannot be cut, so the seconds earned by several steps count for it, as for a single block of a prompt.
        return PrefillBudget(settings.max_prefill_tokens, BUDGET_BLOCK_SIZE,
                             allowance.single_block - cost_model.predict(StepLoad()), cost_model=cost_model)
