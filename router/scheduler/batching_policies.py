"""Policies: how prefill and decode are combined into steps.

`MixedPolicy` runs chunks of prompts together with the decodes, in one batch. `PausePolicy` prefills new sequences in a
batch and steps of their own, the prefill batch, and merges it into the decode batch afterwards. Two more, for
comparisons, are in baseline_policies.py. `PoolingPolicy` drafts steps for embeddings and labels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from router.request import RequestKind
from router.scheduler.cost_model import CostModel, StepLoad
from router.scheduler.running_sequences import Batch
from router.scheduler.sequence import RequestPhase, Sequence, SequenceState
from router.scheduler.shard_messages import Concat, NewSequence
from router.scheduler.step import StepDraft, compute_decode_load

if TYPE_CHECKING:  # the Scheduler makes its policy, which asks it for what a step may hold
    from router.scheduler.scheduler import Scheduler

EARNED_PER_DECODE_SECOND = 2.0  # seconds that prompts may add for each second of decodes that delayed them


@dataclass(slots=True)
class PrefillBudget:
    """Remaining budget of one step for chunks of prompts.

    The first chunk may take `first_chunk_seconds` instead of `seconds`. One of the chunks may take one block more if
    all then stay within `seconds_with_kept`, or the first one within `first_chunk_seconds_with_kept`.
    """

    tokens: int
    block_size: int
    seconds: float = inf
    first_chunk_seconds: float = 0.0
    seconds_with_kept: float = 0.0
    first_chunk_seconds_with_kept: float = 0.0
    cost_model: CostModel | None = None
    spent_seconds: float = 0.0
    last_end: int = 0  # position behind the last chunk

    def max_chunk_length(self, start: int, num_left: int) -> int:
        """Return how many tokens of a prompt may run from `start` on: all that are left, or whole blocks, or none."""
        limit = min(num_left, self.tokens)
        if self.cost_model is None or self.seconds == inf:
            return self._round_to_blocks(start, num_left, limit)
        within_seconds = self._tokens_within_seconds(max(self.seconds, self.first_chunk_seconds), start)
        length = self._round_to_blocks(start, num_left, min(limit, within_seconds))
        seconds_with_kept = max(self.seconds_with_kept, self.first_chunk_seconds_with_kept)
        if length == num_left or not seconds_with_kept:
            return length
        one_block_more = length + self.block_size - (start + length) % self.block_size
        within_seconds = self._tokens_within_seconds(seconds_with_kept, start)
        return max(length, self._round_to_blocks(start, num_left, min(limit, one_block_more, within_seconds)))

    def spend(self, start: int, length: int) -> None:
        self.tokens -= length
        if self.cost_model is not None and self.seconds != inf:
            chunk_seconds = predict_chunk_seconds(self.cost_model, start, length)
            has_taken_one_more = chunk_seconds > max(self.seconds, self.first_chunk_seconds)
            self.seconds_with_kept = 0.0 if has_taken_one_more else max(0.0, self.seconds_with_kept - chunk_seconds)
            self.seconds -= chunk_seconds
            self.spent_seconds += chunk_seconds
            self.first_chunk_seconds = self.first_chunk_seconds_with_kept = 0.0
            self.last_end = start + length

    def _tokens_within_seconds(self, seconds: float, start: int) -> int:
        assert self.cost_model is not None
        _, per_row, per_token, per_slot = self.cost_model.coefficients
        seconds_left = seconds - per_row - per_slot * start
        return max(0, int(min(seconds_left / (per_token + per_slot), 1e9))) if seconds_left > 0.0 else 0

    def _round_to_blocks(self, start: int, num_left: int, limit: int) -> int:
        """Return `limit` if that completes the prompt, or else what fills whole blocks."""
        return limit if limit == num_left else max(0, (start + limit) // self.block_size * self.block_size - start)


class PrefillTimeAllowance(NamedTuple):
    """The seconds that the prompts of one step may add to its decodes."""

    all_prompts: float
    first_prompt: float  # at least `all_prompts`: for the first chunk alone
    all_with_kept: float  # for all chunks, if one of them is longer by one block
    first_with_kept: float  # for the first chunk, if it is longer by one block


class PrefillTimeLedger:
    """Account of the seconds that decodes earn for prompts; computes the seconds that prompts may add to each step.

    A step whose decodes take D seconds earns E * D * max(1, R) seconds, where R is the ratio of waiting to decoding
    sequences and E = EARNED_PER_DECODE_SECOND. What earlier steps earned and prompts did not spend is kept:

        all_prompts     = max(max_stall_seconds / safety_factor, E * D)
        first_prompt    = max(all_prompts, E * D * R)
        all_with_kept   = E * D + kept seconds
        first_with_kept = E * D * max(1, R) + kept seconds

    Two bounds are combined. The stall promise protects decoding sequences: by the cost model and its safety factor
    (`safety_factor`), the chunks of a step add at most `max_stall_seconds` to it. Earned seconds protect requests that
    wait for their first token: a second of decodes delays them by a second and earns two, times waiting / decoding if
    more wait than decode. The seconds that a step earns may be added to it even if they exceed the stall promise.
    Prompts run in whole blocks, so a part of what a step earns remains; kept seconds pay for one block more in a later
    step, never for two: these would stall twice as long as promised where a step earns less than a block.

    Therefore, however slow steps are, prompts get two thirds of the time while any wait, and decodes delay a request by
    no more than a step and half of what the prompts before it and its own take. While no more sequences wait than
    decode, prompts add at most the stall promise, or twice the step's time without them, rounded up to whole blocks.

    Example: decodes of 20 ms, twice as many waiting as decoding, a stall promise of 150 ms with a safety factor of 1.5.
    Prompts may add max(100, 40) = 100 ms. With decodes of 200 ms they may add max(100, 400) = 400 ms, and the first
    prompt alone max(400, 800) = 800 ms.

    The factor waiting / decoding applies to the first prompt alone: prompts that finish one after the other get no
    first token later than prompts that finish together, and most get it sooner.
    """

    __slots__ = ("kept_seconds",)

    def __init__(self) -> None:
        self.kept_seconds = 0.0  # earned and not spent, the next step's included once it has its allowance

    def update_allowance(self, decode_load: StepLoad, num_waiting: int, max_stall_seconds: float,
                         cost_model: CostModel) -> PrefillTimeAllowance:
        """Add what the decodes of the next step earn, and return the allowance of that step."""
        earned = EARNED_PER_DECODE_SECOND * cost_model.predict(decode_load)
        earned_for_first = earned * max(1.0, num_waiting / decode_load.rows)
        all_prompts = max(max_stall_seconds / cost_model.safety_factor, earned)
        first_prompt, all_with_kept = max(all_prompts, earned_for_first), earned + self.kept_seconds
        self.kept_seconds += earned_for_first
        return PrefillTimeAllowance(all_prompts, first_prompt, all_with_kept, self.kept_seconds)

    def settle(self, budget: PrefillBudget) -> None:
        """Take off what the chunks of a step spend. Of the rest, what the next block costs is kept."""
        assert budget.cost_model is not None
        next_block_seconds = predict_chunk_seconds(budget.cost_model, budget.last_end, budget.block_size)
        self.kept_seconds = max(0.0, min(self.kept_seconds - budget.spent_seconds, next_block_seconds))

    def clear(self) -> None:
        """Forget what was earned: no prompt, nor a part of one, was left out of a step for want of time."""
        self.kept_seconds = 0.0


def compute_chunk_load(start: int, length: int) -> StepLoad:
    """Return the load that a chunk adds to a step: a row, its tokens, and the cache slots that it reads."""
    return StepLoad(rows=1, chunk_tokens=length, context=start + length)


def predict_chunk_seconds(cost_model: CostModel, start: int, length: int) -> float:
    """Return the seconds that a chunk is predicted to add to a step."""
    return cost_model.predict(compute_chunk_load(start, length)) - cost_model.predict(StepLoad())


class StepPolicy:
    """Base of the policies: allocates blocks for decodes and fits chunks of prompts into a budget."""

    __slots__ = ("num_places_left", "pauses_decodes", "scheduler", "wake_at")
    reuses_cache: ClassVar[bool] = True  # whether sequences find blocks of others, and decode from their own

    def __init__(self, scheduler: "Scheduler") -> None:
        self.scheduler = scheduler
        self.wake_at: float | None = None  # when `prepare` must be called
        self.pauses_decodes = False  # whether prompts run in steps without the decodes
        self.num_places_left = 0  # how many more sequences may join the open group, if there is one

    def draft_step(self) -> StepDraft:
        raise NotImplementedError

    def prepare(self, now: float) -> None:
        """Do what is due. Called before each step is drafted, and at `wake_at`."""

    def after_step_drafted(self) -> None:
        """React to a step that was drafted, whatever its kind."""

    def on_sequence_started(self, sequence: Sequence) -> None:
        """React to a sequence that was taken off the queue for the step that is being drafted."""

    def admits(self, sequence: Sequence) -> bool:  # noqa: ARG002
        """Return whether a waiting sequence may start, if there is room."""
        return True

    def count_admissible(self) -> int:
        """Return how many waiting sequences `admits` lets start to generate text, and need nothing else but room."""
        return self.scheduler.waiting.num_runnable_generation

    def draft_decodes(self, decoding: list[Sequence], draft: StepDraft) -> None:
        draft.grants, preempted = self.scheduler.running.allocate_for_decodes(decoding)
        if preempted:
            self.scheduler.requeue_preempted(preempted)
            decoding = [s for s in decoding if s.state is SequenceState.RUNNING]
        draft.decoding = decoding

    def add_prompt_chunks(self, draft: StepDraft, budget: PrefillBudget,
                          may_start_next: Callable[[int], bool] = bool) -> bool:
        """Add chunks to the draft; return whether the budget left out any prompt, or a part of one.

        Unfinished prompts go first, except that tenants take turns: one of a tenant that has received less goes before,
        if it is shorter than what is left. `may_start_next` says, given the tokens left in the budget, whether another
        sequence may start: by default, if any are left.
        """
        assert draft.batch is not None
        selector = self.scheduler.selector
        # If all sequences of the batch decode, no prompt is unfinished.
        prompts = (selector.sort_by_tenant_turn(find_sequences_to_prefill(draft.batch))
                   if len(draft.decoding) < len(draft.batch) else [])
        for sequence in prompts:
            while (selector.has_several_tenants and may_start_next(budget.tokens)
                   and (candidate := selector.peek_next_sequence()) is not None
                   and selector.may_overtake_unfinished_prompt(candidate, sequence)):
                if not self._start_candidate(draft, budget, candidate):
                    return True
            if not self._add_chunk(draft, budget, sequence):
                return True
        while may_start_next(budget.tokens) and (candidate := selector.peek_next_sequence()) is not None:
            if not self._start_candidate(draft, budget, candidate):
                return True
        return any(sequence.num_scheduled_tokens + length < sequence.num_tokens_to_prefill
                   for sequence, length in draft.chunks)

    def _start_candidate(self, draft: StepDraft, budget: PrefillBudget, candidate: Sequence) -> bool:
        """Start a sequence with a chunk of its prompt, if the budget has room for one."""
        assert draft.batch is not None
        cached = self.scheduler.running.count_prefix_hit_tokens(candidate)
        if not budget.max_chunk_length(cached, candidate.length - cached):
            self.scheduler.selector.record_turned_away(candidate, RequestPhase.PREFILL_BUDGET)
            draft.has_turned_new_sequence_away = True
            return False
        self.scheduler.start_sequence(candidate)
        draft.new_sequences.append(self.scheduler.running.enter_batch(candidate, draft.batch))
        self._add_chunk(draft, budget, candidate)
        return True

    def _add_chunk(self, draft: StepDraft, budget: PrefillBudget, sequence: Sequence) -> int:
        start = sequence.num_scheduled_tokens
        length = budget.max_chunk_length(start, sequence.num_tokens_to_prefill - start)
        if length:
            budget.spend(start, length)
            draft.chunks.append((sequence, length))
        return length

    def token_budget(self, num_decodes: int = 0) -> PrefillBudget:
        """Return a budget of tokens alone, beside so many decodes."""
        return PrefillBudget(self.scheduler.settings.max_prefill_tokens - num_decodes,
                             self.scheduler.running.block_pool.block_size)


class MixedPolicy(StepPolicy):
    """Policy that runs chunks of prompts together with the decodes, in one batch."""

    __slots__ = ("_prefill_time_ledger",)

    def __init__(self, scheduler: "Scheduler") -> None:
        super().__init__(scheduler)
        self._prefill_time_ledger = PrefillTimeLedger()

    def draft_step(self) -> StepDraft:
        running, draft = self.scheduler.running, StepDraft()
        # `is_ready_to_decode`, inline: this runs for every sequence in every step.
        self.draft_decodes([s for batch in running.batches for s in batch.sequences.values()
                            if s.num_scheduled_tokens >= s.num_tokens_to_prefill], draft)
        draft.messages_before += running.take_pending_filters()
        draft.batch = running.batches[0] if running.batches else running.make_empty_batch()
        has_prompts = len(draft.decoding) < len(draft.batch.sequences) or self.scheduler.waiting.demand.num_sequences
        if has_prompts:
            budget = self._make_budget(draft, draft.batch)
            left_some_out = self.add_prompt_chunks(draft, budget)
        if not (has_prompts and left_some_out and draft.decoding):
            self._prefill_time_ledger.clear()
        elif draft.chunks:
            self._prefill_time_ledger.settle(budget)
        return draft

    def _make_budget(self, draft: StepDraft, batch: Batch) -> PrefillBudget:
        budget = self.token_budget(len(draft.decoding))
        if draft.decoding:
            draft.decode_load = compute_decode_load(draft.decoding)
            num_waiting = len(batch) - len(draft.decoding) + self.scheduler.num_fitting()
            budget.cost_model = self.scheduler.cost_model
            (budget.seconds, budget.first_chunk_seconds, budget.seconds_with_kept,
             budget.first_chunk_seconds_with_kept) = (
                self._prefill_time_ledger.update_allowance(draft.decode_load, num_waiting,
                                                           self.scheduler.settings.max_stall_seconds,
                                                           budget.cost_model))
        return budget


class PausePolicy(StepPolicy):
    """Policy that prefills new sequences in a batch of their own, the prefill batch, with steps of the decode batch in
    between, and then merges it into the decode batch.
    """

    __slots__ = ("_decode_next", "_num_decode_steps", "_prefill_batch")

    def __init__(self, scheduler: "Scheduler") -> None:
        super().__init__(scheduler)
        self.pauses_decodes = True
        self._prefill_batch: Batch | None = None
        self._decode_next = False
        self._num_decode_steps = 0  # decode steps since new sequences last started

    def draft_step(self) -> StepDraft:
        running, draft = self.scheduler.running, StepDraft()
        draft.messages_before += running.take_pending_filters()
        if self._prefill_batch not in running.batches:
            self._prefill_batch = None
        if self._prefill_batch is not None and not find_sequences_to_prefill(self._prefill_batch):
            if len(running.batches) > 1:
                draft.messages_before.append(Concat(running.concat_batches()))
            self._prefill_batch = None
        if not (self._decode_next and self._list_decodable_sequences()):
            self._draft_prefill(draft)
        if not draft.chunks:
            self._decode_next = False
            if ready := self._list_decodable_sequences():
                self._num_decode_steps += 1
                self.draft_decodes(ready, draft)
                draft.messages_before += running.take_pending_filters()
                draft.batch = self._find_decode_batch()
        return draft

    def _find_decode_batch(self) -> Batch | None:
        return next((batch for batch in self.scheduler.running.batches if batch is not self._prefill_batch), None)

    def _list_decodable_sequences(self) -> list[Sequence]:
        """Return the ready sequences of the decode batch."""
        return [sequence for sequence in self._find_decode_batch() or () if sequence.is_ready_to_decode]

    def _draft_prefill(self, draft: StepDraft) -> None:
        """Continue the prompts of the prefill batch, or else start new sequences if they are due."""
        is_new = self._prefill_batch is None
        if is_new:
            if not self._should_start_prefill() or self.scheduler.selector.peek_next_sequence() is None:
                return
            self._prefill_batch, self._num_decode_steps = self.scheduler.running.make_empty_batch(), 0
        draft.batch = self._prefill_batch
        self.add_prompt_chunks(draft, self.token_budget(), self._fits_uncut if is_new else lambda _: False)
        self._decode_next = True

    def _should_start_prefill(self) -> bool:
        settings = self.scheduler.settings
        num_running, num_waiting = len(self.scheduler.running), self.scheduler.num_waiting_for_room()
        return bool(num_waiting) and (not num_running or self._num_decode_steps >= settings.max_waiting_tokens
                                      or num_waiting >= max(1, int(num_running * settings.waiting_served_ratio)))

    def _fits_uncut(self, tokens_left: int) -> bool:
        """Return whether the next prompt fits uncut, or is the step's first, which is cut if it exceeds the budget."""
        candidate = self.scheduler.selector.peek_next_sequence()
        return candidate is not None and (
            tokens_left == self.scheduler.settings.max_prefill_tokens
            or candidate.length - self.scheduler.running.count_prefix_hit_tokens(candidate) <= tokens_left)


def find_sequences_to_prefill(batch: Batch) -> list[Sequence]:
    return [sequence for sequence in batch if not sequence.is_ready_to_decode]


class PoolingPolicy:
    """Policy that drafts pooling steps: texts that are run as a whole, for embeddings or labels of their tokens.

    Such a text cannot be cut, takes no blocks and enters no batch. The first sequence in turn decides the kind of a
    step, but between two pooling steps running sequences get a step of their own. While sequences decode, pooling
    shares the time with the decodes as prompts do (`PrefillTimeLedger`), except that the whole pooling step counts
    as added time.
    """

    __slots__ = ("_last_step_was_pooling", "_prefill_time_ledger", "is_active", "scheduler")

    def __init__(self, scheduler: "Scheduler") -> None:
        self.scheduler = scheduler
        self.is_active = False  # whether texts waited when `draft_step` was last called
        self._last_step_was_pooling = False  # the step before was a pooling step
        self._prefill_time_ledger = PrefillTimeLedger()

    def draft_step(self) -> StepDraft | None:
        """Return a pooling step; None if the next generates text. To be called while texts wait, and once after."""
        self.is_active = bool(self.scheduler.waiting.num_pooling)
        kind = self.scheduler.selector.next_request_kind()
        if not self.is_active:
            self._prefill_time_ledger.clear()
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
            self._prefill_time_ledger.clear()
        return draft if draft.chunks else None

    def _make_budget(self) -> PrefillBudget:
        """Return the budget of a pooling step, with block size 1, since a text takes no blocks.

        The constant cost of the step counts as added time too, since the whole step delays the decodes.
        """
        settings, cost_model = self.scheduler.settings, self.scheduler.cost_model
        decode_load = compute_decode_load([s for s in self.scheduler.running if s.is_ready_to_decode])
        if not decode_load.rows:
            return PrefillBudget(settings.max_prefill_tokens, 1)
        # 0: the ratio waiting / decoding applies to sequences that generate text only.
        allowance = self._prefill_time_ledger.update_allowance(decode_load, 0, settings.max_stall_seconds, cost_model)
        # A text cannot be cut, so the seconds earned by several steps count for it.
        return PrefillBudget(settings.max_prefill_tokens, 1,
                             max(allowance.first_prompt, allowance.first_with_kept) - cost_model.predict(StepLoad()),
                             cost_model=cost_model)
