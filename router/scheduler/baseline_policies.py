"""Policies for comparisons: static batching, and a model without a KV cache.

With static batching a group of sequences runs from its first step to its last while all others wait. A group forms when
no member of the one before runs. Its members are the sequences that wait at that time, in order of turn, up to the
batch size; the earliest waits for others as long as the window allows. A member that ends is not replaced. Requests for
embeddings or labels belong to no group.
"""

from collections import Counter
from itertools import islice
from math import inf

from router.request import RequestKind
from router.scheduler.batching_policies import StepPolicy
from router.scheduler.sequence import Sequence, SequenceState
from router.scheduler.step import StepDraft

RequestLengths = tuple[int, int]  # tokens of the prompt, max_new_tokens


class StaticPolicy(StepPolicy):
    """Policy that lets only the members of the current group start, and leaves their steps to another policy."""

    __slots__ = ("_formed_at", "_member_ids", "_member_lengths", "_step_policy")

    def __init__(self, step_policy: StepPolicy) -> None:
        super().__init__(step_policy.scheduler)
        self._step_policy = step_policy
        self.pauses_decodes = step_policy.pauses_decodes
        self._member_ids = set[int]()  # sequences that joined
        self._formed_at = -inf  # sequences that arrived later wait for the next group
        self._member_lengths: RequestLengths | None = None  # of all members, if they must be equal and are decided

    def prepare(self, now: float) -> None:
        """Form the next group if the last one is over."""
        self.wake_at = None
        if len(self.scheduler.running):
            return
        self._member_ids.clear()
        self.num_places_left, self._member_lengths = 0, None
        waiting = [s for s in self.scheduler.waiting.iter_unsuspended()
                   if s.request.kind is RequestKind.GENERATE and s.missing_resource is None]
        if not waiting:
            return
        settings = self.scheduler.settings
        window_end = min(sequence.submitted_at for sequence in waiting) + settings.static_window_seconds
        if now < window_end:
            lengths, num_equal = Counter(map(request_lengths, waiting)).most_common(1)[0]
            if (num_equal if settings.static_equal_lengths else len(waiting)) < settings.max_batch_size:
                self.wake_at = window_end
                return
            self._member_lengths = lengths if settings.static_equal_lengths else None
        self._formed_at, self.num_places_left = now, settings.max_batch_size

    def admits(self, sequence: Sequence) -> bool:
        """Return whether the sequence may run with the current group. A preempted member still may."""
        if sequence.request.kind is not RequestKind.GENERATE or sequence.id in self._member_ids:
            return True
        return (self.num_places_left > 0 and sequence.submitted_at <= self._formed_at
                and (self._member_lengths is None or self._member_lengths == request_lengths(sequence)))

    def count_admissible(self) -> int:
        """Count the members that wait again, and the others up to the places left: only these are looked for."""
        scheduler, is_startable = self.scheduler, self.scheduler.selector.is_startable
        members = [s for number in self._member_ids if (s := scheduler.sequences.get(number)) is not None]
        others = (s for s in scheduler.waiting.iter_unsuspended() if s.id not in self._member_ids and is_startable(s))
        return sum(map(is_startable, members)) + len([*islice(others, self.num_places_left)])

    def on_sequence_started(self, sequence: Sequence) -> None:
        """Add a member to the group."""
        if sequence.request.kind is RequestKind.GENERATE and sequence.id not in self._member_ids:
            self._member_ids.add(sequence.id)
            self.num_places_left -= 1
            if self.scheduler.settings.static_equal_lengths:
                self._member_lengths = request_lengths(sequence)

    def draft_step(self) -> StepDraft:
        return self._step_policy.draft_step()

    def after_step_drafted(self) -> None:
        """Close the group unless another sequence can start, now or once the prefix that it waits for is computed."""
        can_start_more = self.scheduler.selector.peek_next_sequence() is not None
        if self._member_ids and self.num_places_left and not can_start_more and not any(
                self.admits(sequence) and self.scheduler.running.is_waiting_for_prefix(sequence)
                for sequence in self.scheduler.waiting):
            self.num_places_left = 0


def request_lengths(sequence: Sequence) -> RequestLengths:
    return len(sequence.request.prompt), sequence.request.max_new_tokens


class RecomputePolicy(StepPolicy):
    """Policy that does not reuse the KV cache: each new token recomputes the prompt and all tokens generated so far.

    A sequence that got a token leaves its batch with the next step and enters it again, one token longer, as a
    preempted one would; so shards need no code for this policy. The cost of a step grows with the total length of its
    sequences. The policy is a baseline for comparisons.
    """

    __slots__ = ()
    reuses_cache = False

    def draft_step(self) -> StepDraft:
        running, draft = self.scheduler.running, StepDraft()
        returning = sorted((sequence for sequence in running if sequence.is_ready_to_decode),
                           key=lambda sequence: sequence.priority_key)
        for sequence in returning:
            running.remove_sequence(sequence, SequenceState.PREEMPTED)
        draft.messages_before += running.take_pending_filters()
        draft.batch = running.batches[0] if running.batches else running.make_empty_batch()
        # In priority order, up to the first that does not fit with its new token; no reserve of blocks is kept. Their
        # chunks are those of unfinished prompts.
        for index, sequence in enumerate(returning):
            if running.num_free_blocks_needed(sequence) > running.block_pool.num_free:
                self.scheduler.requeue_preempted(returning[index:])
                break
            draft.new_sequences.append(running.enter_batch(sequence, draft.batch))
        self.add_prompt_chunks(draft, self.token_budget())
        return draft
