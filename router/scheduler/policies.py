"""Step policies: how prefill and decode are combined into steps.

`Mixed` runs chunks of prompts together with the decodes, in one lasting batch. `Pause` prefills new sequences in a
batch and steps of their own and joins the batches afterwards. Both see the scheduler only through `House`, and return
a `Draft`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from router.request import Wish
from router.scheduler.batch import Batch
from router.scheduler.cost_model import CostModel, Load
from router.scheduler.plan import Chunk, Concat, Decode, Embed, Filter, Grant, Message, Newcomer, Prefill
from router.scheduler.prefill_budget import Budget, PromptShare, load_of_chunk
from router.scheduler.running import Running
from router.scheduler.sequence import Sequence, State
from router.scheduler.settings import Policy


class House(Protocol):
    """The part of the scheduler that a policy may use."""

    policy: Policy
    running: Running
    costs: CostModel

    def next_wish(self) -> Wish: ...
    def next_newcomer(self, wish: Wish = Wish.TEXT) -> Sequence | None: ...
    def num_startable(self) -> int: ...
    def num_with_room(self) -> int: ...
    def num_embeds(self) -> int: ...
    def take(self, newcomer: Sequence) -> None: ...
    def turn_away(self, newcomer: Sequence) -> None: ...
    def wait_again(self, yielded: list[Sequence]) -> None: ...


@dataclass(slots=True)
class Draft:
    """A step being planned.

    The messages in `before` are sent ahead of it. Without a batch there is no step, except for a pooling step, whose
    chunks are whole texts.
    """

    before: list[Filter | Concat] = field(default_factory=list)
    batch: Batch | None = None
    ready: list[Sequence] = field(default_factory=list)
    chunks: list[tuple[Sequence, int]] = field(default_factory=list)
    newcomers: list[Newcomer] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    crowded: bool = False  # the budget had no tokens for a new sequence
    alone: Load | None = None  # load of the decodes without chunks, computed on demand
    wish: Wish = Wish.TEXT  # kind of all its sequences

    def messages(self) -> list[Message]:
        step = self._step()
        return [*self.before, step] if step is not None else list(self.before)

    def load_alone(self) -> Load:
        """Return the load of the decodes without chunks. Call before `Step.of`, which advances the sequences."""
        if self.alone is None:
            self.alone = load_of_decodes(self.ready)
        return self.alone

    @property
    def is_step(self) -> bool:
        return bool(self.chunks or self.ready)

    def _step(self) -> Prefill | Decode | Embed | None:
        if self.wish is not Wish.TEXT:
            return Embed(self.wish, tuple(self.newcomers))
        if self.batch is None or not self.is_step:
            return None
        number, grants, keep = self.batch.number, tuple(self.grants), self._riding_filter(self.batch)
        if not self.chunks:
            return Decode(number, grants, keep)
        chunks = tuple(Chunk(s.number, s.computed, length) for s, length in self.chunks)
        return Prefill(number, tuple(self.newcomers), chunks, bool(self.ready), grants, keep)

    def _riding_filter(self, batch: Batch) -> tuple[int, ...] | None:
        """Remove a Filter of the step's own batch from the end of `before` and return what it keeps.

        The Filter is sent with the step, which saves a call.
        """
        last = self.before[-1] if self.before else None
        if not isinstance(last, Filter) or last.batch != batch.number:
            return None
        del self.before[-1]
        return last.keep


class Steps:
    """Base of the step policies: allocates blocks for decodes and fits chunks of prompts into a budget."""

    def __init__(self, house: House) -> None:
        self.house = house

    def draft(self) -> Draft:
        raise NotImplementedError

    def grow(self, ready: list[Sequence], draft: Draft) -> None:
        draft.grants, yielded = self.house.running.grow(ready)
        self.house.wait_again(yielded)
        draft.ready = [s for s in ready if s.state is State.RUNNING] if yielded else ready

    def fill(self, draft: Draft, budget: Budget, may_enter: Callable[[int], bool]) -> bool:
        """Add chunks to the draft, unfinished prompts first; return whether the budget left a prompt out."""
        assert draft.batch is not None
        prompts = unfinished(draft.batch) if len(draft.ready) < len(draft.batch) else []
        for sequence in prompts:
            if not self._chunk(draft, budget, sequence):
                return True
        while may_enter(budget.tokens) and (newcomer := self.house.next_newcomer()) is not None:
            cached = self.house.running.num_cached(newcomer)
            if not budget.chunk(cached, newcomer.length - cached):
                self.house.turn_away(newcomer)
                draft.crowded = True
                return True
            self.house.take(newcomer)
            draft.newcomers.append(self.house.running.enter(newcomer, draft.batch))
            self._chunk(draft, budget, newcomer)
        return False

    def _chunk(self, draft: Draft, budget: Budget, sequence: Sequence) -> int:
        length = budget.chunk(sequence.computed, sequence.given - sequence.computed)
        if length:
            budget.spend(sequence.computed, length)
            draft.chunks.append((sequence, length))
        return length

    def block_size(self) -> int:
        return self.house.running.blocks.size


class Mixed(Steps):
    def __init__(self, house: House) -> None:
        super().__init__(house)
        self._share = PromptShare()

    def draft(self) -> Draft:
        running, draft = self.house.running, Draft()
        ready = [s for batch in running.batches for s in batch if s.computed >= s.given]
        self.grow(ready, draft)
        draft.before += running.owed_filters()
        draft.batch = running.batches[0] if running.batches else running.new_batch()
        turned_away = self.fill(draft, self._budget(draft, draft.batch), lambda tokens: tokens > 0)
        self._share.planned(left_out=turned_away and not draft.chunks)
        return draft

    def _budget(self, draft: Draft, batch: Batch) -> Budget:
        left, size = self.house.policy.max_prefill_tokens - len(draft.ready), self.block_size()
        if not draft.ready:
            return Budget(left, size)
        num_waiting = len(batch) - len(draft.ready) + self.house.num_with_room()
        seconds = self._share.seconds(
            draft.load_alone(), num_waiting, self.house.policy.stall_seconds, self.house.costs)
        return Budget(left, size, *seconds, self.house.costs)


class Pause(Steps):
    """Policy that prefills new sequences in a separate batch, with decode steps in between, and then joins them."""

    def __init__(self, house: House) -> None:
        super().__init__(house)
        self._joining: Batch | None = None
        self._decode_next = False
        self._decodes = 0  # decode steps since new sequences last started

    def draft(self) -> Draft:
        running, draft = self.house.running, Draft()
        draft.before += running.owed_filters()
        if self._joining not in running.batches:
            self._joining = None
        if self._joining is not None and not unfinished(self._joining):
            self._join(draft)
        if not (self._decode_next and self._decoding()):
            self._prefill(draft)
        if not draft.chunks:
            self._decode(draft)
        return draft

    def _prefill(self, draft: Draft) -> None:
        """Continue the prompts of the joining batch, or else start new sequences if they are due."""
        if self._joining is not None:
            self._run_prompts(draft, self._joining, lambda _: False)
        elif self._is_due():
            self._take_newcomers(draft)

    def _lasting(self) -> Batch | None:
        """Return the batch that the joining one will be merged into; None if there is none."""
        return next((batch for batch in self.house.running.batches if batch is not self._joining), None)

    def _decoding(self) -> list[Sequence]:
        """Return the ready sequences of the lasting batch."""
        lasting = self._lasting()
        return [sequence for sequence in lasting if sequence.is_ready] if lasting is not None else []

    def _join(self, draft: Draft) -> None:
        if len(self.house.running.batches) > 1:
            draft.before.append(Concat(self.house.running.concat()))
        self._joining = None

    def _is_due(self) -> bool:
        policy, running, waiting = self.house.policy, len(self.house.running), self.house.num_startable()
        if not waiting:
            return False
        enough = waiting >= max(1, int(running * policy.waiting_served_ratio))
        return not running or enough or self._decodes >= policy.max_waiting_tokens

    def _take_newcomers(self, draft: Draft) -> None:
        if self.house.next_newcomer() is None:
            return
        self._joining = self.house.running.new_batch()
        self._decodes = 0
        whole = self.house.policy.max_prefill_tokens
        self._run_prompts(draft, self._joining, lambda left: self._fits_whole(left, whole))

    def _fits_whole(self, left: int, whole: int) -> bool:
        """Return whether the next prompt fits uncut, or is the step's first, which is cut if it exceeds the budget."""
        newcomer = self.house.next_newcomer()
        if newcomer is None:
            return False
        return left == whole or newcomer.length - self.house.running.num_cached(newcomer) <= left

    def _run_prompts(self, draft: Draft, joining: Batch, may_enter: Callable[[int], bool]) -> None:
        draft.batch = joining
        self.fill(draft, Budget(self.house.policy.max_prefill_tokens, self.block_size()), may_enter)
        self._decode_next = True

    def _decode(self, draft: Draft) -> None:
        self._decode_next = False
        ready = self._decoding()
        if ready:
            self._decodes += 1
            self.grow(ready, draft)
            draft.before += self.house.running.owed_filters()
            draft.batch = self._lasting()


def unfinished(batch: Batch) -> list[Sequence]:
    return [sequence for sequence in batch if not sequence.is_ready]


def load_of_decodes(ready: list[Sequence]) -> Load:
    """Return the load of decoding one token per sequence. Call before `Step.of`, which advances the sequences."""
    return Load(rows=len(ready), context=sum([s.length + s.in_flight for s in ready]))


def load_of_step(draft: Draft) -> Load:
    """Return the load of the drafted step. Call before `Step.of` advances the sequences."""
    ready = draft.load_alone()
    chunks = [load_of_chunk(sequence.computed, length) for sequence, length in draft.chunks]
    context = ready.context + sum(chunk.context for chunk in chunks)
    return Load(ready.rows + len(chunks), sum(chunk.chunk_tokens for chunk in chunks), context)
