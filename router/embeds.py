"""Steps of texts that are run as a whole: to be embedded, or for labels of their tokens.

Such a text cannot be cut, takes no blocks and enters no batch. What the first in turn wants is what a step is for, but
between two of these steps those who generate have one. While somebody decodes, texts share the time with the decodes as
prompts do, except that the whole of their step is what they add. Sees only the house.
"""

from router.budget import Budget, PromptShare
from router.costs import Load
from router.request import Wish
from router.sequence import Sequence
from router.steps import Draft, House, load_of_decodes

ONE_TOKEN = 1  # for a budget in whole blocks: a text has none


class Embeds:
    def __init__(self, house: House) -> None:
        self.house = house
        self._was_last = False  # the step before was one of these
        self._share = PromptShare()

    def draft(self) -> Draft | None:
        """A step, if it is theirs."""
        wish = self.house.next_wish()
        if wish is Wish.TEXT and not self.house.num_embeds():
            self._share.planned(left_out=False)  # who was held up has left
        is_theirs = wish is not Wish.TEXT and not (self._was_last and len(self.house.running))
        draft = self._draft(wish) if is_theirs else None
        self._was_last = draft is not None
        return draft

    def _draft(self, wish: Wish) -> Draft | None:
        draft, budget, most = Draft(wish=wish), self._budget(), self.house.policy.max_batch_size
        while len(draft.chunks) < most and (text := self.house.next_newcomer(wish)) is not None:
            if budget.chunk(0, text.length) < text.length:
                self.house.turn_away(text)
                draft.crowded = True
                break
            self._take(text, draft, budget)
        self._share.planned(left_out=draft.crowded and not draft.chunks)
        return draft if draft.chunks else None

    def _take(self, text: Sequence, draft: Draft, budget: Budget) -> None:
        self.house.take(text)
        budget.spend(0, text.length)
        draft.newcomers.append(self.house.running.pass_through(text))
        draft.chunks.append((text, text.length))

    def _budget(self) -> Budget:
        """Count what every step costs as added, too: for whoever decodes all of this one is a stall."""
        policy, costs = self.house.policy, self.house.costs
        decodes = load_of_decodes([sequence for sequence in self.house.running if sequence.is_ready])
        if not decodes.rows:
            return Budget(policy.max_prefill_tokens, ONE_TOKEN)
        seconds, _ = self._share.seconds(decodes, 0, policy.stall_seconds, costs)
        return Budget(policy.max_prefill_tokens, ONE_TOKEN, seconds - costs.predict(Load()), costs=costs)
