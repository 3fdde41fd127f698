"""Step policy that does not reuse the KV cache: each new token recomputes the prompt and all tokens generated so far.

A sequence that got a token leaves its batch with the next step and enters it again, one token longer, as a preempted
one would; so shards need no code for this policy. The cost of a step grows with the total length of its sequences.
The policy is a baseline for comparisons.
"""

from router.scheduler.policies import StepDraft, StepPolicy
from router.scheduler.prefill_budget import PrefillBudget
from router.scheduler.sequence import Sequence, SequenceState


class RecomputePolicy(StepPolicy):
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
        """Enter the sequences in order of rank, up to the first that does not fit with its new token; the rest wait."""
        assert draft.batch is not None
        running = self.scheduler.running
        for index, sequence in enumerate(returning):
            if not running.can_reenter(sequence):
                self.scheduler.requeue_preempted(returning[index:])
                return
            draft.new_sequences.append(running.enter_batch(sequence, draft.batch))
