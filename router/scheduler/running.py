"""Running batches and the cache blocks that they hold: entry, growth, preemption and removal of sequences.

A sequence leaves its batch here first. The Filter that tells the shards (`owed_filters`) is sent before or with the
next step of a batch (pooling steps use no blocks), and so before any other sequence uses its blocks.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Rows
from itertools import count, islice
from math import ceil

from router.block_hash import block_hashes
from router.request import Tenant
from router.scheduler.batch import Batch
from router.scheduler.block_pool import Blocks
from router.scheduler.plan import Filter, Grant, Newcomer
from router.scheduler.sequence import Sequence, State
from router.scheduler.settings import Policy

# (hash of the block before, tokens, block size) -> hashes of the full blocks.
Hasher = Callable[[bytes, Rows[int], int], Rows[bytes]]


class Running:
    """Running sequences in their batches, and the blocks allocated to them."""

    def __init__(self, policy: Policy, blocks: Blocks, tokens_per_step: int, hasher: Hasher = block_hashes) -> None:
        self.policy = policy
        self.blocks = blocks
        self._hasher = hasher
        self.batches: list[Batch] = []
        self._tokens_per_step = tokens_per_step
        self._numbers = count(1)
        self._ending: dict[int, Sequence] = {}  # left their batch, hold blocks to publish once they are answered

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def __iter__(self) -> Iterator[Sequence]:
        for batch in self.batches:
            yield from batch

    def new_batch(self) -> Batch:
        """Return a new batch; it is registered when its first sequence enters."""
        return Batch(next(self._numbers))

    # -- entering

    def whole(self, sequence: Sequence) -> int:
        """Return the number of blocks that the sequence needs at its greatest length.

        The last generated token is never computed and needs no slot; a step that may produce several tokens needs
        slots for all of them.
        """
        spare = self.policy.look_ahead * (self._tokens_per_step - 1)
        return self.blocks.places(max(len(sequence.request.prompt), sequence.request.max_length - 1 + spare))

    def has_room(self, sequence: Sequence) -> bool:
        """Return whether a new sequence fits.

        A reserve of blocks must stay free for the growth of running sequences; without any, none is kept.
        """
        if len(self) >= self.policy.max_batch_size:
            return False
        return self._missing_blocks(sequence, len(self)) <= 0 and self._can_all_end(sequence)

    def may_enter_again(self, sequence: Sequence) -> bool:
        """Return whether a sequence that has just left fits again; no reserve is kept."""
        return self._wanted(sequence) <= self.blocks.num_free

    def _missing_blocks(self, newcomer: Sequence, num_running: int) -> int:
        """Return how many free blocks are missing for `newcomer` to enter beside `num_running` others; <= 0: none."""
        if not num_running:
            return self._at_entry(newcomer) - self.blocks.num_free
        reserve = max(ceil(self.policy.reserve * self.blocks.count), num_running)
        return self._wanted(newcomer) + reserve - self.blocks.num_free

    def enter(self, sequence: Sequence, batch: Batch) -> Newcomer:
        sequence.state = State.RUNNING
        cached = self.cached(sequence)
        self.blocks.hold(cached)
        sequence.blocks = cached + self.blocks.take(self._at_entry(sequence) - len(cached))
        sequence.given, sequence.computed = sequence.length, len(cached) * self.blocks.size
        sequence.num_published = len(cached)
        for block, name in self._unpublished(sequence):
            self.blocks.reserve(block, name)
        batch.add(sequence)
        if batch not in self.batches:
            self.batches.append(batch)
        return Newcomer(sequence.number, sequence.request, tuple(sequence.generated), tuple(sequence.blocks),
                        sequence.computed)

    def pass_through(self, sequence: Sequence) -> Newcomer:
        """Return the sequence as a member of a pooling step, its only one: it enters no batch and holds no blocks."""
        sequence.state = State.ENDING
        return Newcomer(sequence.number, sequence.request, (), ())

    def _wanted(self, sequence: Sequence) -> int:
        """Return how many free blocks the sequence would use; cached blocks that others hold cost none."""
        cached = self.cached(sequence)
        return self._at_entry(sequence) - len(cached) + self.blocks.num_kept_of(cached)

    def _is_settled(self, sequence: Sequence) -> bool:
        """Return whether the sequence was preempted `max_yields` times: it then enters with all its blocks, to stay."""
        return sequence.num_yields >= self.policy.max_yields

    def _at_entry(self, sequence: Sequence) -> int:
        return self.whole(sequence) if self._is_settled(sequence) else self.blocks.places(sequence.length)

    def _can_all_end(self, newcomer: Sequence) -> bool:
        """Return whether the largest other sequence can still finish beside the settled ones, which free no blocks."""
        everyone = [*self, newcomer]
        settled = [s for s in everyone if self._is_settled(s)]
        if not settled:
            return True
        largest = max((self.whole(s) for s in everyone if not self._is_settled(s)), default=0)
        return sum(map(self.whole, settled)) + largest <= self.blocks.count

    # -- prefix cache

    def cached(self, sequence: Sequence) -> list[int]:
        """Return the cached blocks that the sequence could use if it entered now.

        Its last token is always computed, because the next one is sampled from its logits.
        """
        return self.blocks.find(islice(sequence.names, self._most_cached(sequence)))

    def num_cached(self, sequence: Sequence) -> int:
        """Return how many of the sequence's tokens are cached, if it entered now."""
        return len(self.cached(sequence)) * self.blocks.size

    def waits_for_prefix(self, sequence: Sequence) -> bool:
        """Return whether a running sequence is computing the next block that this one needs."""
        place = len(self.cached(sequence))
        return place < self._most_cached(sequence) and self.blocks.is_reserved(sequence.names[place])

    def _most_cached(self, sequence: Sequence) -> int:
        """Return how many cached blocks the sequence may use at most.

        None with `recompute`, or if it wants the logprobs of its prompt: those need the whole prompt computed.
        """
        most = min(len(sequence.names), (sequence.length - 1) // self.blocks.size)
        return 0 if sequence.request.prompt_logprobs or self.policy.recompute else most

    def publish(self, sequence: Sequence, filled: int) -> None:
        """Publish the sequence's full blocks, after its first `filled` tokens were computed."""
        first, end = sequence.num_published, filled // self.blocks.size
        if first < end and self._is_shared(sequence):
            self._name(sequence, end)
            self.blocks.publish(sequence.blocks[first:end], sequence.names[first:end])
            sequence.num_published = end

    def _publish_generated(self, sequence: Sequence) -> None:
        """Publish the blocks of generated tokens when the sequence leaves: before, no request is expected to need them.

        If the sequence got a token since its entry, all its tokens before the last one are in its blocks.
        """
        if sequence.blocks and sequence.length > sequence.given:
            self.publish(sequence, sequence.length - 1)

    def _name(self, sequence: Sequence, end: int) -> None:
        """Compute the missing hashes of the sequence's first `end` blocks."""
        names, size = sequence.names, self.blocks.size
        if len(names) < end:
            before = names[-1] if names else sequence.request.namespace
            names += self._hasher(before, sequence.tokens(len(names) * size, end * size), size)

    def _is_shared(self, sequence: Sequence) -> bool:
        """Return whether other sequences may share the blocks that this one computes."""
        return bool(sequence.request.namespace) and not self.policy.recompute

    def _unpublished(self, sequence: Sequence) -> Iterator[tuple[int, bytes]]:
        """Return the blocks that its prefill will fill and that are not published yet, with their hashes."""
        last = min(len(sequence.names), sequence.given // self.blocks.size) if self._is_shared(sequence) else 0
        known = range(sequence.num_published, last)
        return ((sequence.blocks[index], sequence.names[index]) for index in known)

    # -- growth and preemption

    def grow(self, ready: list[Sequence]) -> tuple[list[Grant], list[Sequence]]:
        """Allocate blocks for the tokens of the next step; return the grants and the sequences preempted for them."""
        per_step, size = self._tokens_per_step, self.blocks.size
        wants = [(s, self._missing(s)) for s in ready
                 if s.length + (s.in_flight + 1) * per_step - 1 > len(s.blocks) * size]
        if sum(missing for _, missing in wants) <= self.blocks.num_free:
            return [self._grant(sequence, missing) for sequence, missing in wants], []
        for ending in list(self._ending.values()):
            self.free(ending)
        return self._grow_by_rank(sorted(wants, key=lambda want: want[0].rank))

    def _missing(self, sequence: Sequence) -> int:
        most = sequence.length + (sequence.in_flight + 1) * self._tokens_per_step - 1
        return self.blocks.places(most) - len(sequence.blocks)

    def _grant(self, sequence: Sequence, missing: int) -> Grant:
        taken = self.blocks.take(missing)
        sequence.blocks += taken
        return Grant(sequence.number, tuple(taken))

    def _grow_by_rank(self, wants: list[tuple[Sequence, int]]) -> tuple[list[Grant], list[Sequence]]:
        grants: list[Grant] = []
        yielded: list[Sequence] = []
        for sequence, missing in wants:
            while sequence not in yielded and self.blocks.num_free < missing:
                yielded.append(self._next_to_yield())
                self.give_back(yielded[-1])
            if sequence not in yielded:
                grants.append(self._grant(sequence, missing))
        return grants, yielded

    def _next_to_yield(self) -> Sequence:
        """Return the sequence to preempt: the last in rank, but never the first of all.

        Blocks are granted in order of rank, so the preempted sequence is the requesting one or one behind it, and no
        block granted for this step is taken back.
        """
        first = min(sequence.rank for sequence in self)
        candidates = [s for s in self if s.rank != first and not self._is_settled(s)]
        assert candidates, "the first sequence does not fit beside the settled ones"
        return max(candidates, key=lambda sequence: sequence.rank)

    def has_less_than_its_share(self, tenant: Tenant) -> bool:
        """Return whether the tenant with one more sequence runs, per weight, no more than another with one less."""
        counts = Counter([sequence.request.tenant for sequence in self])
        more = (counts.pop(tenant, 0) + 1) / tenant.weight
        return any((count - 1) / other.weight >= more for other, count in counts.items())

    def make_way(self, newcomer: Sequence) -> list[Sequence]:
        """Return the sequences to preempt so that a tenant below its share can run `newcomer`; none if that fails.

        They are the last in rank of the tenants that run most per weight, as long as each of these runs no less per
        weight than the newcomer's tenant afterwards.
        """
        tenant, leaving = newcomer.request.tenant, list[Sequence]()
        if not self.has_less_than_its_share(tenant):
            return []
        counts = Counter(s.request.tenant.name for s in self)
        first = min((s.rank for s in self), default=newcomer.rank)
        others = sorted((s for s in self if s.request.tenant.name != tenant.name and s.rank != first
                         and not self._is_settled(s)), key=lambda s: s.rank)
        while others and not self._has_room_without(newcomer, leaving):
            most = max(others, key=lambda s: (counts[s.request.tenant.name] / s.request.tenant.weight, s.rank))
            name, weight = most.request.tenant.name, most.request.tenant.weight
            if (counts[name] - 1) / weight < (counts[tenant.name] + 1) / tenant.weight:
                return []
            counts[name] -= 1
            others.remove(most)
            leaving.append(most)
        return leaving if self._has_room_without(newcomer, leaving) else []

    def _has_room_without(self, newcomer: Sequence, leaving: list[Sequence]) -> bool:
        num_left = len(self) - len(leaving)
        freed = self.blocks.num_freed(s.blocks for s in leaving)
        return (num_left < self.policy.max_batch_size and self._missing_blocks(newcomer, num_left) <= freed
                and self._can_all_end(newcomer))

    def give_back(self, sequence: Sequence) -> None:
        """Preempt the sequence: it frees its blocks, and is queued again once its tokens in flight are answered."""
        self.leave(sequence, State.YIELDING)
        sequence.num_yields += 1

    def leave(self, sequence: Sequence, state: State) -> None:
        """Remove the sequence from its batch and free its blocks; the batch's Filter removes it on the shards."""
        next(batch for batch in self.batches if sequence in batch).remove(sequence)
        sequence.state = state
        self.free(sequence)

    def leave_ending(self, sequence: Sequence) -> None:
        """Remove a sequence whose last tokens are in flight.

        If these tokens fill another block, the sequence holds its blocks until they are answered, to publish it then;
        `grow` frees them earlier if blocks run short.
        """
        next(batch for batch in self.batches if sequence in batch).remove(sequence)
        sequence.state = State.ENDING
        last = sequence.length + sequence.in_flight * self._tokens_per_step - 1
        self._publish_generated(sequence)
        if self._is_shared(sequence) and last // self.blocks.size > sequence.num_published:
            self._ending[sequence.number] = sequence
        else:
            self.free(sequence)

    def free(self, sequence: Sequence) -> None:
        """Free the blocks that the sequence holds, if any. Full ones that others may share are published first."""
        self._publish_generated(sequence)
        for block, name in self._unpublished(sequence):
            self.blocks.release(block, name)
        self.blocks.give_back(sequence.forget_cache())
        self._ending.pop(sequence.number, None)

    # -- messages for the shards

    def concat(self) -> tuple[int, ...]:
        """Join all batches into the first; return their numbers."""
        numbers = tuple(batch.number for batch in self.batches)
        for other in self.batches[1:]:
            self.batches[0].absorb(other)
        del self.batches[1:]
        return numbers

    def owed_filters(self) -> list[Filter]:
        filters = [owed for batch in self.batches if (owed := batch.owed_filter()) is not None]
        self.batches = [batch for batch in self.batches if len(batch)]
        return filters
