"""Steps without a cache: each computes prompts and all that was generated anew, for whoever runs.

Who has a token leaves its batch with the next step and enters it again with one token more, as one who lost its blocks
would. So a shard learns nothing new; what a step costs grows with all that there is of everybody. There to compare
with. Sees only the house.
"""

from router.budget import Budget
from router.sequence import Sequence, State
from router.steps import Draft, Steps


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
        """The first in rank before the others, which wait where there is no room for all with a token more."""
        assert draft.batch is not None
        running = self.house.running
        for place, sequence in enumerate(again):
            if not running.may_enter_again(sequence):
                self.house.wait_again(again[place:])
                return
            draft.newcomers.append(running.enter(sequence, draft.batch))
