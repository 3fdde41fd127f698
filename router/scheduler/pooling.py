"""Pooling steps: texts that are run as a whole, for embeddings or labels of their tokens.

Such a text cannot be cut, takes no blocks and enters no batch. The first sequence in turn decides the kind of a step,
but between two pooling steps running sequences get a step of their own. While sequences decode, pooling shares the
time with the decodes as prompts do (`PromptShare`), except that the whole pooling step counts as added time.
"""

from router.request import Wish
from router.scheduler.cost_model import Load
from router.scheduler.policies import Draft, House, load_of_decodes
from router.scheduler.prefill_budget import Budget, PromptShare
from router.scheduler.sequence import Sequence

ONE_TOKEN = 1  # block size for the budget: a text takes no blocks


class Embeds:
    def __init__(self, house: House) -> None:
        self.house = house
        self._was_last = False  # the step before was a pooling step
        self._share = PromptShare()

    def draft(self) -> Draft | None:
        """Return a pooling step; None if the next step generates text."""
        wish = self.house.next_wish()
        if wish is Wish.TEXT and not self.house.num_embeds():
            self._share.planned(left_out=False)  # no pooling request waits any more: the earned seconds expire
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
        """Return the budget of a pooling step.

        The constant cost of the step counts as added time too, since the whole step delays the decodes.
        """
        policy, costs = self.house.policy, self.house.costs
        decodes = load_of_decodes([sequence for sequence in self.house.running if sequence.is_ready])
        if not decodes.rows:
            return Budget(policy.max_prefill_tokens, ONE_TOKEN)
        *_, seconds = self._share.seconds(decodes, 0, policy.stall_seconds, costs)
        return Budget(policy.max_prefill_tokens, ONE_TOKEN, seconds - costs.predict(Load()), costs=costs)
