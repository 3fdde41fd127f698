"""Running batches and the cache blocks that they hold: entry, growth, preemption and removal of sequences.

A sequence leaves its batch here first. The Filter that tells the shards (`take_pending_filters`) is sent before or with
the next step of a batch (pooling steps use no blocks), and so before any other sequence uses its blocks.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as GenericSequence
from itertools import islice
from math import ceil

from router.request import Tenant, hash_blocks
from router.scheduler.block_pool import BlockPool
from router.scheduler.messages import BlockGrant, Filter, NewSequence
from router.scheduler.sequence import Sequence, SequenceState
from router.scheduler.settings import SchedulerSettings


class Batch:
    """Sequences that step together, known to router and shards by the same id."""

    __slots__ = ("id", "needs_filter", "sequences")

    def __init__(self, batch_id: int) -> None:
        self.id = batch_id
        self.sequences: dict[int, Sequence] = {}
        self.needs_filter = False

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.sequences.values())

    def add(self, sequence: Sequence) -> None:
        self.sequences[sequence.id] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Remove the sequence here; the shards remove it by the Filter that is owed from now on."""
        del self.sequences[sequence.id]
        self.needs_filter = True

    def absorb(self, other: "Batch") -> None:
        self.sequences |= other.sequences

    def take_filter(self) -> Filter:
        """Return the Filter that is owed (`needs_filter`)."""
        self.needs_filter = False
        return Filter(self.id, tuple(self.sequences))


# (hash of the block before, tokens, block size) -> hashes of the full blocks.
BlockHasher = Callable[[bytes, GenericSequence[int], int], GenericSequence[bytes]]


class RunningSequences:
    """Running sequences in their batches, and the blocks allocated to them."""

    __slots__ = ("_finishing", "_hasher", "_last_batch_id", "_reuses_cache", "_tokens_per_step", "batches",
                 "block_pool", "settings")

    def __init__(self, settings: SchedulerSettings, block_pool: BlockPool, tokens_per_step: int,
                 hasher: BlockHasher = hash_blocks, *, reuses_cache: bool = True) -> None:
        """Without `reuses_cache` no sequence finds cached blocks."""
        self.settings = settings
        self._hasher = hasher
        self._reuses_cache = reuses_cache
        self.reset(block_pool, tokens_per_step)

    def reset(self, block_pool: BlockPool, tokens_per_step: int) -> None:
        """Begin with other shards: nothing runs, every block is free."""
        self.block_pool = block_pool
        self.batches: list[Batch] = []
        self._tokens_per_step = tokens_per_step
        self._last_batch_id = 0
        self._finishing: dict[int, Sequence] = {}  # left their batch, hold blocks to cache once they are answered

    def __len__(self) -> int:
        return sum([len(batch.sequences) for batch in self.batches])

    def __iter__(self) -> Iterator[Sequence]:
        for batch in self.batches:
            yield from batch

    def new_batch(self) -> Batch:
        """Return a new batch; it is registered when its first sequence enters."""
        self._last_batch_id += 1
        return Batch(self._last_batch_id)

    # -- entering

    def max_num_blocks(self, sequence: Sequence) -> int:
        """Return the number of blocks that the sequence needs at its greatest length.

        The last generated token is never computed and needs no slot; a step that may produce several tokens needs
        slots for all of them.
        """
        num_spare_tokens = self.settings.look_ahead * (self._tokens_per_step - 1)
        return self.block_pool.num_blocks_for(max(len(sequence.request.prompt),
                                                  sequence.request.max_length - 1 + num_spare_tokens))

    def has_room_for(self, sequence: Sequence) -> bool:
        """Return whether a new sequence fits.

        A reserve of blocks must stay free for the growth of running sequences; if none runs, none is kept.
        """
        if len(self) >= self.settings.max_batch_size:
            return False
        return self._compute_block_shortfall(sequence, len(self)) <= 0 and self._can_all_finish(sequence)

    def can_reenter(self, sequence: Sequence) -> bool:
        """Return whether a sequence that has just left fits again; no reserve is kept."""
        return self._num_free_blocks_needed(sequence) <= self.block_pool.num_free

    def _compute_block_shortfall(self, candidate: Sequence, num_running: int) -> int:
        """Return how many more blocks must be free for the candidate to enter beside `num_running` others; <= 0: it
        may enter now."""
        if not num_running:
            return self._num_blocks_at_entry(candidate) - self.block_pool.num_free
        reserve = max(ceil(self.settings.reserved_block_fraction * self.block_pool.num_blocks), num_running)
        return self._num_free_blocks_needed(candidate) + reserve - self.block_pool.num_free

    def enter_batch(self, sequence: Sequence, batch: Batch) -> NewSequence:
        sequence.state = SequenceState.RUNNING
        cached_blocks = self.find_cached_blocks(sequence)
        self.block_pool.acquire(cached_blocks)
        sequence.blocks = cached_blocks + self.block_pool.allocate(
            self._num_blocks_at_entry(sequence) - len(cached_blocks))
        sequence.num_initial_tokens = sequence.length
        sequence.num_sent_tokens = len(cached_blocks) * self.block_pool.block_size
        sequence.num_cached_blocks = len(cached_blocks)
        if sequence.block_hashes:
            for block, block_hash in self._blocks_to_cache(sequence):
                self.block_pool.reserve_hash(block, block_hash)
        batch.add(sequence)
        if batch not in self.batches:
            self.batches.append(batch)
        return NewSequence(sequence.id, sequence.request, tuple(sequence.generated), tuple(sequence.blocks),
                           sequence.num_sent_tokens)

    def start_pooling(self, sequence: Sequence) -> NewSequence:
        """Return the sequence as a member of a pooling step, its only one: it enters no batch and holds no blocks."""
        sequence.state = SequenceState.FINISHING
        return NewSequence(sequence.id, sequence.request, (), ())

    def _num_free_blocks_needed(self, sequence: Sequence) -> int:
        """Return how many free blocks the sequence would use; cached blocks that others hold cost none."""
        cached_blocks = self.find_cached_blocks(sequence)
        return self._num_blocks_at_entry(sequence) - len(cached_blocks) + self.block_pool.count_evictable(cached_blocks)

    def _is_unpreemptible(self, sequence: Sequence) -> bool:
        """Return whether the sequence was preempted `max_preemptions` times: it then enters with all its blocks, to
        stay."""
        return sequence.num_preemptions >= self.settings.max_preemptions

    def _num_blocks_at_entry(self, sequence: Sequence) -> int:
        return (self.max_num_blocks(sequence) if self._is_unpreemptible(sequence)
                else self.block_pool.num_blocks_for(sequence.length))

    def _can_all_finish(self, candidate: Sequence) -> bool:
        """Return whether the largest other sequence can still finish beside those that cannot be preempted."""
        sequences = [*self, candidate]
        unpreemptible = [s for s in sequences if s.num_preemptions >= self.settings.max_preemptions]
        if not unpreemptible:
            return True
        largest = max((self.max_num_blocks(s) for s in sequences if not self._is_unpreemptible(s)), default=0)
        return sum(map(self.max_num_blocks, unpreemptible)) + largest <= self.block_pool.num_blocks

    # -- prefix cache

    def find_cached_blocks(self, sequence: Sequence) -> list[int]:
        """Return the cached blocks that the waiting sequence could use if it entered now.

        They are looked up once for each version of the cache's contents. The last token is always computed, because
        the next one is sampled from its logits.
        """
        if sequence.cached_prefix_version != self.block_pool.contents_version:
            sequence.cached_prefix = self.block_pool.find_cached_prefix(
                islice(sequence.block_hashes, self._max_cached_blocks(sequence)))
            sequence.cached_prefix_version = self.block_pool.contents_version
        return sequence.cached_prefix

    def count_cached_tokens(self, sequence: Sequence) -> int:
        """Return how many of the sequence's tokens are cached, if it entered now."""
        return len(self.find_cached_blocks(sequence)) * self.block_pool.block_size

    def is_waiting_for_prefix(self, sequence: Sequence) -> bool:
        """Return whether a running sequence is computing the next block that this one needs."""
        block_index = len(self.find_cached_blocks(sequence))
        return (block_index < self._max_cached_blocks(sequence)
                and self.block_pool.is_hash_reserved(sequence.block_hashes[block_index]))

    def _max_cached_blocks(self, sequence: Sequence) -> int:
        """Return how many cached blocks the sequence may use at most.

        None if the policy does not reuse the cache, or if it wants the logprobs of its prompt: those need the whole
        prompt computed.
        """
        limit = min(len(sequence.block_hashes), (sequence.length - 1) // self.block_pool.block_size)
        return limit if self._reuses_cache and not sequence.request.prompt_logprobs else 0

    def cache_full_blocks(self, sequence: Sequence, num_computed_tokens: int) -> None:
        """Cache the sequence's full blocks, after its first `num_computed_tokens` tokens were computed."""
        first, end = sequence.num_cached_blocks, num_computed_tokens // self.block_pool.block_size
        if first < end and self._may_share_blocks(sequence):
            self._compute_block_hashes(sequence, end)
            self.block_pool.cache_full_blocks(sequence.blocks[first:end], sequence.block_hashes[first:end])
            sequence.num_cached_blocks = end

    def _cache_generated_blocks(self, sequence: Sequence) -> None:
        """Cache the blocks of generated tokens when the sequence leaves: before, no request is expected to need them.

        If the sequence got a token since its entry, all its tokens before the last one are in its blocks.
        """
        if sequence.blocks and sequence.length > sequence.num_initial_tokens:
            self.cache_full_blocks(sequence, sequence.length - 1)

    def _compute_block_hashes(self, sequence: Sequence, num_blocks: int) -> None:
        """Compute the missing hashes of the sequence's first `num_blocks` blocks."""
        block_hashes, block_size = sequence.block_hashes, self.block_pool.block_size
        if len(block_hashes) < num_blocks:
            parent_hash = block_hashes[-1] if block_hashes else sequence.request.cache_namespace
            block_hashes += self._hasher(
                parent_hash, sequence.tokens_between(len(block_hashes) * block_size, num_blocks * block_size),
                block_size)

    def _may_share_blocks(self, sequence: Sequence) -> bool:
        """Return whether other sequences may share the blocks that this one computes."""
        return bool(sequence.request.cache_namespace) and self._reuses_cache

    def _blocks_to_cache(self, sequence: Sequence) -> Iterator[tuple[int, bytes]]:
        """Return the blocks that its prefill will fill and that are not cached yet, with their hashes."""
        last = (min(len(sequence.block_hashes), sequence.num_initial_tokens // self.block_pool.block_size)
                if self._may_share_blocks(sequence) else 0)
        indices = range(sequence.num_cached_blocks, last)
        return ((sequence.blocks[index], sequence.block_hashes[index]) for index in indices)

    # -- growth and preemption

    def allocate_for_decodes(self, decoding: list[Sequence]) -> tuple[list[BlockGrant], list[Sequence]]:
        """Allocate blocks for the tokens of the next step; return the grants and the sequences preempted for them."""
        per_step, size = self._tokens_per_step, self.block_pool.block_size
        needed_grants = [(s, self._num_blocks_to_grant(s)) for s in decoding
                         if s.length + (s.num_outputs_in_flight + 1) * per_step - 1 > len(s.blocks) * size]
        if not needed_grants:
            return [], []
        if sum(num_to_grant for _, num_to_grant in needed_grants) <= self.block_pool.num_free:
            return [self._grant_blocks(sequence, num_to_grant) for sequence, num_to_grant in needed_grants], []
        for finishing in list(self._finishing.values()):
            self.free_blocks(finishing)
        return self._allocate_by_priority(sorted(needed_grants, key=lambda grant: grant[0].priority_key))

    def _num_blocks_to_grant(self, sequence: Sequence) -> int:
        max_tokens = sequence.length + (sequence.num_outputs_in_flight + 1) * self._tokens_per_step - 1
        return self.block_pool.num_blocks_for(max_tokens) - len(sequence.blocks)

    def _grant_blocks(self, sequence: Sequence, num_blocks: int) -> BlockGrant:
        blocks = self.block_pool.allocate(num_blocks)
        sequence.blocks += blocks  # in place: `ChunkWrite.is_valid` compares the list object
        return BlockGrant(sequence.id, tuple(blocks))

    def _allocate_by_priority(
            self, needed_grants: list[tuple[Sequence, int]]) -> tuple[list[BlockGrant], list[Sequence]]:
        grants: list[BlockGrant] = []
        preempted: list[Sequence] = []
        for sequence, num_to_grant in needed_grants:
            while sequence not in preempted and self.block_pool.num_free < num_to_grant:
                preempted.append(self._next_to_preempt())
                self.preempt(preempted[-1])
            if sequence not in preempted:
                grants.append(self._grant_blocks(sequence, num_to_grant))
        return grants, preempted

    def _next_to_preempt(self) -> Sequence:
        """Return the sequence to preempt: the last in priority order, but never the first of all.

        Blocks are granted in priority order, so the preempted sequence is the requesting one or one behind it, and no
        block granted for this step is taken back.
        """
        first = min(sequence.priority_key for sequence in self)
        preemptible = [s for s in self if s.priority_key != first and not self._is_unpreemptible(s)]
        assert preemptible, "the first sequence does not fit beside those that cannot be preempted"
        return max(preemptible, key=lambda sequence: sequence.priority_key)

    def is_below_fair_share(self, tenant: Tenant) -> bool:
        """Return whether the tenant with one more sequence runs, per weight, no more than another with one less."""
        counts = Counter([sequence.request.tenant for sequence in self])
        more = (counts.pop(tenant, 0) + 1) / tenant.weight
        return any((count - 1) / other.weight >= more for other, count in counts.items())

    def choose_fair_preemptions(self, candidate: Sequence) -> list[Sequence]:
        """Return the sequences to preempt so that a tenant below its share can run it; none if that fails.

        They are the last in priority order of the tenants that run most per weight, as long as each of these runs no
        less per weight afterwards than the tenant of the candidate.
        """
        tenant = candidate.request.tenant
        victims: list[Sequence] = []
        if not self.is_below_fair_share(tenant):
            return []
        counts = Counter(s.request.tenant.name for s in self)
        first = min((s.priority_key for s in self), default=candidate.priority_key)
        preemptible = sorted((s for s in self if s.request.tenant.name != tenant.name and s.priority_key != first
                              and not self._is_unpreemptible(s)), key=lambda s: s.priority_key)
        while preemptible and not self._has_room_without(candidate, victims):
            victim = max(preemptible,
                         key=lambda s: (counts[s.request.tenant.name] / s.request.tenant.weight, s.priority_key))
            name, weight = victim.request.tenant.name, victim.request.tenant.weight
            if (counts[name] - 1) / weight < (counts[tenant.name] + 1) / tenant.weight:
                return []
            counts[name] -= 1
            preemptible.remove(victim)
            victims.append(victim)
        return victims if self._has_room_without(candidate, victims) else []

    def _has_room_without(self, candidate: Sequence, victims: list[Sequence]) -> bool:
        num_left = len(self) - len(victims)
        freed = self.block_pool.count_freed_by(s.blocks for s in victims)
        return (num_left < self.settings.max_batch_size and self._compute_block_shortfall(candidate, num_left)
                <= freed and self._can_all_finish(candidate))

    def preempt(self, sequence: Sequence) -> None:
        """Preempt the sequence: it frees its blocks, and is queued again once its tokens in flight are answered."""
        self.remove_sequence(sequence, SequenceState.PREEMPTED)
        sequence.num_preemptions += 1

    def remove_sequence(self, sequence: Sequence, new_state: SequenceState) -> None:
        """Remove the sequence from its batch and free its blocks; the batch's Filter removes it on the shards."""
        self._remove_from_batch(sequence)
        sequence.state = new_state
        self.free_blocks(sequence)

    def _remove_from_batch(self, sequence: Sequence) -> None:
        for batch in self.batches:
            if sequence.id in batch.sequences:
                batch.remove(sequence)
                return
        raise AssertionError("the sequence is in no batch")

    def remove_finishing_sequences(self) -> None:
        """Remove the sequences that reach their length limit with the tokens in flight."""
        # `Sequence.num_tokens_left`, inline: this runs for every sequence in every step.
        for sequence in [s for batch in self.batches for s in batch.sequences.values()
                         if s.request.max_length - s.length - s.num_outputs_in_flight <= 0]:
            self.remove_finishing_sequence(sequence)

    def remove_finishing_sequence(self, sequence: Sequence) -> None:
        """Remove a sequence whose last tokens are in flight.

        If these tokens fill another block, the sequence holds its blocks until they are answered, to cache it then;
        `allocate_for_decodes` frees them earlier if blocks run short.
        """
        self._remove_from_batch(sequence)
        sequence.state = SequenceState.FINISHING
        num_final_tokens = sequence.length + sequence.num_outputs_in_flight * self._tokens_per_step - 1
        self._cache_generated_blocks(sequence)
        if (self._may_share_blocks(sequence)
            and num_final_tokens // self.block_pool.block_size > sequence.num_cached_blocks):
            self._finishing[sequence.id] = sequence
        else:
            self.free_blocks(sequence)

    def free_blocks(self, sequence: Sequence) -> None:
        """Free the blocks that the sequence holds, if any. Full ones that others may share are cached first."""
        self._cache_generated_blocks(sequence)
        if sequence.block_hashes:
            for block, block_hash in self._blocks_to_cache(sequence):
                self.block_pool.release_hash(block, block_hash)
        self.block_pool.free(sequence.reset_cache_state())
        self._finishing.pop(sequence.id, None)

    # -- messages for the shards

    def concat_batches(self) -> tuple[int, ...]:
        """Join all batches into the first; return the ids of all."""
        batch_ids = tuple(batch.id for batch in self.batches)
        for other in self.batches[1:]:
            self.batches[0].absorb(other)
        del self.batches[1:]
        return batch_ids

    def take_pending_filters(self) -> list[Filter]:
        filters = [batch.take_filter() for batch in self.batches if batch.needs_filter]
        if filters:
            self.batches = [batch for batch in self.batches if batch.sequences]
        return filters
