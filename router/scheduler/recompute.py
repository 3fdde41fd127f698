"""Step policy that does not reuse the KV cache: each new token recomputes the prompt and all tokens generated so far.

A sequence that got a token leaves its batch with the next step and enters it again, one token longer, as a preempted
one would; so shards need no code for this policy. The cost of a step grows with the total length of its sequences.
The policy is a baseline for comparisons.
"""

from router.scheduler.policies import Draft, Steps
from router.scheduler.prefill_budget import Budget
from router.scheduler.sequence import Sequence, State


class Anew(Steps):
    def draft(self) -> Draft:
        running, draft = self.house.running, Draft()
        again = sorted((sequence for sequence in running if sequence.is_ready), key=lambda sequence: sequence.rank)
        for sequence in again:
            running.leave(sequence, State.YIELDING)
        draft.before += running.owed_filters()
        draft.batch = running.batches[0] if running.batches else running.new_batch()
        self._enter_again(again, draft)
        self.fill(draft, Budget(self.house.policy.max_prefill_tokens, self.block_size()), lambda left: left > 0)
        return draft

    def _enter_again(self, again: list[Sequence], draft: Draft) -> None:
        """Enter the sequences in order of rank, up to the first that does not fit with its new token; the rest wait."""
        assert draft.batch is not None
        running = self.house.running
        for place, sequence in enumerate(again):
            if not running.may_enter_again(sequence):
                self.house.wait_again(again[place:])
                return
            draft.newcomers.append(running.enter(sequence, draft.batch))
