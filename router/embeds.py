"""Steps of texts that are run as a whole: to be embedded, or for labels of their tokens.

Such a text cannot be cut, takes no blocks and enters no batch. What the first in turn wants is what a step is for, but
between two of these steps those who generate have one, and while somebody decodes they keep the stall promise. Sees
only the house.
"""

from router.budget import Budget
from router.costs import Load
from router.request import Wish
from router.sequence import Sequence
from router.steps import Draft, House

ONE_TOKEN = 1  # for a budget in whole blocks: a text has none


class Embeds:
    def __init__(self, house: House) -> None:
        self.house = house
        self._was_last = False  # the step before was one of these
        self._starved = 0

    def draft(self) -> Draft | None:
        """A step, if it is theirs."""
        wish = self.house.next_wish()
        is_theirs = wish is not Wish.TEXT and not (self._was_last and len(self.house.running))
        draft = self._draft(wish) if is_theirs else None
        self._was_last = draft is not None
        return draft

    def _draft(self, wish: Wish) -> Draft | None:
        draft, budget, most = Draft(wish=wish), self._budget(), self.house.policy.max_batch_size
        while len(draft.chunks) < most and (text := self.house.next_newcomer(wish)) is not None:
            if budget.chunk(0, text.length) < text.length and not self._is_overdue(draft):
                self.house.turn_away(text)
                draft.crowded = True
                break
            self._take(text, draft, budget)
        self._starved = 0 if draft.chunks else self._starved + 1
        return draft if draft.chunks else None

    def _take(self, text: Sequence, draft: Draft, budget: Budget) -> None:
        self.house.take(text)
        budget.spend(0, text.length)
        draft.newcomers.append(self.house.running.pass_through(text))
        draft.chunks.append((text, text.length))

    def _is_overdue(self, draft: Draft) -> bool:
        """The stall promise has kept texts waiting for too long: then one runs, whatever it takes."""
        return not draft.chunks and self._starved >= self.house.policy.max_starved_steps

    def _budget(self) -> Budget:
        """For whoever decodes all of the step is a stall."""
        policy, costs, empty = self.house.policy, self.house.costs, Load()
        if not any(sequence.is_ready for sequence in self.house.running):
            return Budget(policy.max_prefill_tokens, ONE_TOKEN)
        promise = policy.stall_seconds - costs.predict(empty)
        return Budget.beside(empty, policy.max_prefill_tokens, ONE_TOKEN, promise, costs)
