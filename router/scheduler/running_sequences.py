"""Running batches and the cache blocks that they hold: entry, growth, preemption and removal of sequences.

A sequence leaves its batch here first. The Filter that tells the shards (`take_pending_filters`) is sent before or with
the next step of a batch (pooling steps use no blocks), and so before any other sequence uses its blocks.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass, field
from itertools import islice
from math import ceil

from router.model_info import ModelInfo
from router.request import Tenant, hash_blocks
from router.scheduler.block_pool import BlockPool
from router.scheduler.sequence import Sequence, SequenceState
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import BlockGrant, Filter, NewSequence


@dataclass(slots=True, eq=False)
class Batch:
    """Sequences that step together, known to router and shards by the same id."""

    id: int
    sequences: dict[int, Sequence] = field(default_factory=dict)
    needs_filter: bool = False  # sequences were removed here that the shards still have

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.sequences.values())


# (hash of the block before, tokens, block size) -> hashes of the full blocks.
BlockHasher = Callable[[bytes, GenericSequence[int], int], GenericSequence[bytes]]


class RunningSequences:
    """Running sequences in their batches, and the blocks allocated to them."""

    __slots__ = ("_finishing", "_hasher", "_last_batch_id", "_reuses_cache", "_tokens_per_step", "batches",
                 "block_pool", "settings")

    def __init__(self, settings: SchedulerSettings, model_info: ModelInfo, hasher: BlockHasher = hash_blocks, *,
                 reuses_cache: bool = True) -> None:
        """Without `reuses_cache` no sequence finds cached blocks."""
        self.settings = settings
        self._hasher = hasher
        self._reuses_cache = reuses_cache
        self.reset(model_info)

    def reset(self, model_info: ModelInfo) -> None:
        """Begin with other shards: nothing runs, every block is free."""
        self.block_pool = BlockPool(model_info.num_blocks, model_info.block_size)
        self.batches: list[Batch] = []
        self._tokens_per_step = model_info.tokens_per_step
        self._last_batch_id = 0
        self._finishing: dict[int, Sequence] = {}  # left their batch, hold blocks to cache once they are answered

    def __len__(self) -> int:
        return sum([len(batch.sequences) for batch in self.batches])

    def __iter__(self) -> Iterator[Sequence]:
        for batch in self.batches:
            yield from batch

    def make_empty_batch(self) -> Batch:
        """Return a new batch; it is registered when its first sequence enters."""
        self._last_batch_id += 1
        return Batch(self._last_batch_id)

    # -- entering

    def max_blocks_of(self, sequence: Sequence) -> int:
        """Return the number of blocks that the sequence needs at its greatest length.

        The last generated token is never computed and needs no slot; a step that may produce several tokens needs
        slots for all of them.
        """
        num_spare_tokens = self.settings.look_ahead * (self._tokens_per_step - 1)
        return self.block_pool.num_blocks_for(max(len(sequence.request.prompt),
                                                  sequence.request.max_length - 1 + num_spare_tokens))

    def has_room_for(self, sequence: Sequence, victims: GenericSequence[Sequence] = ()) -> bool:
        """Return whether a new sequence fits, now or once the victims are preempted.

        A reserve of blocks must stay free for the growth of running sequences; if none runs, none is kept.
        """
        num_running = len(self) - len(victims)
        if num_running >= self.settings.max_batch_size:
            return False
        if num_running:
            reserve = max(ceil(self.settings.reserved_block_fraction * self.block_pool.num_blocks), num_running)
            num_needed = self.num_free_blocks_needed(sequence) + reserve
        else:
            num_needed = self._num_blocks_at_entry(sequence)
        num_freed = self.block_pool.count_freed_by(s.blocks for s in victims) if victims else 0
        return num_needed <= self.block_pool.num_free + num_freed and self._fits_beside_unpreemptible(sequence)

    def enter_batch(self, sequence: Sequence, batch: Batch) -> NewSequence:
        sequence.state = SequenceState.RUNNING
        cached_blocks = self.find_cached_blocks(sequence)
        self.block_pool.touch(cached_blocks)
        sequence.blocks = cached_blocks + self.block_pool.allocate(
            self._num_blocks_at_entry(sequence) - len(cached_blocks))
        sequence.num_tokens_to_prefill = sequence.length
        sequence.num_scheduled_tokens = len(cached_blocks) * self.block_pool.block_size
        sequence.num_cached_blocks = len(cached_blocks)
        if sequence.block_hashes:
            for block, block_hash in self._blocks_to_cache(sequence):
                self.block_pool.reserve_hash(block, block_hash)
        batch.sequences[sequence.id] = sequence
        if batch not in self.batches:
            self.batches.append(batch)
        return NewSequence(sequence.id, sequence.request, tuple(sequence.generated), tuple(sequence.blocks),
                           sequence.num_scheduled_tokens)

    def num_free_blocks_needed(self, sequence: Sequence) -> int:
        """Return how many free blocks the sequence would use; cached blocks that others hold cost none."""
        cached_blocks = self.find_cached_blocks(sequence)
        num_cached_to_take = self.block_pool.count_unreferenced(cached_blocks)
        return self._num_blocks_at_entry(sequence) - len(cached_blocks) + num_cached_to_take

    def _is_unpreemptible(self, sequence: Sequence) -> bool:
        """Return whether the sequence, preempted `max_preemptions` times, now enters with all its blocks, to stay."""
        return sequence.num_preemptions >= self.settings.max_preemptions

    def _num_blocks_at_entry(self, sequence: Sequence) -> int:
        return (self.max_blocks_of(sequence) if self._is_unpreemptible(sequence)
                else self.block_pool.num_blocks_for(sequence.length))

    def _fits_beside_unpreemptible(self, candidate: Sequence) -> bool:
        """Return whether the largest other sequence can still finish beside those that cannot be preempted."""
        sequences = [*self, candidate]
        unpreemptible = [s for s in sequences if self._is_unpreemptible(s)]
        if not unpreemptible:
            return True
        largest = max((self.max_blocks_of(s) for s in sequences if not self._is_unpreemptible(s)), default=0)
        return sum(map(self.max_blocks_of, unpreemptible)) + largest <= self.block_pool.num_blocks

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

    def count_prefix_hit_tokens(self, sequence: Sequence) -> int:
        """Return how many of the sequence's tokens are cached, if it entered now."""
        return len(self.find_cached_blocks(sequence)) * self.block_pool.block_size

    def is_waiting_for_prefix(self, sequence: Sequence) -> bool:
        """Return whether a running sequence is computing the next block that this one needs."""
        block_index = len(self.find_cached_blocks(sequence))
        return (block_index < self._max_cached_blocks(sequence)
                and self.block_pool.is_hash_reserved(sequence.block_hashes[block_index]))

    def _max_cached_blocks(self, sequence: Sequence) -> int:
        """Return how many cached blocks the sequence may use: none if it wants the logprobs of its whole prompt."""
        limit = min(len(sequence.block_hashes), (sequence.length - 1) // self.block_pool.block_size)
        return limit if self._reuses_cache and not sequence.request.prompt_logprobs else 0

    def cache_full_blocks(self, sequence: Sequence, num_computed_tokens: int) -> None:
        """Cache the sequence's full blocks, after its first `num_computed_tokens` tokens were computed."""
        block_hashes, block_size = sequence.block_hashes, self.block_pool.block_size
        first, end = sequence.num_cached_blocks, num_computed_tokens // block_size
        if first >= end or not self._may_share_blocks(sequence):
            return
        if len(block_hashes) < end:
            parent_hash = block_hashes[-1] if block_hashes else sequence.request.cache_namespace
            prompt, start, stop = sequence.request.prompt, len(block_hashes) * block_size, end * block_size
            tokens = [*prompt[start:stop], *sequence.generated[max(0, start - len(prompt)):max(0, stop - len(prompt))]]
            block_hashes += self._hasher(parent_hash, tokens, block_size)
        self.block_pool.cache_full_blocks(sequence.blocks[first:end], block_hashes[first:end])
        sequence.num_cached_blocks = end

    def _cache_generated_blocks(self, sequence: Sequence) -> None:
        """Cache the blocks of generated tokens when the sequence leaves: before, no request is expected to need them.

        If the sequence got a token since its entry, all its tokens before the last one are in its blocks.
        """
        if sequence.blocks and sequence.length > sequence.num_tokens_to_prefill:
            self.cache_full_blocks(sequence, sequence.length - 1)

    def _may_share_blocks(self, sequence: Sequence) -> bool:
        """Return whether other sequences may share the blocks that this one computes."""
        return bool(sequence.request.cache_namespace) and self._reuses_cache

    def _blocks_to_cache(self, sequence: Sequence) -> Iterator[tuple[int, bytes]]:
        """Return the blocks that its prefill will fill and that are not cached yet, with their hashes."""
        last = (min(len(sequence.block_hashes), sequence.num_tokens_to_prefill // self.block_pool.block_size)
                if self._may_share_blocks(sequence) else 0)
        indices = range(sequence.num_cached_blocks, last)
        return ((sequence.blocks[index], sequence.block_hashes[index]) for index in indices)

    # -- growth and preemption

    def allocate_for_decodes(self, decoding: list[Sequence]) -> tuple[list[BlockGrant], list[Sequence]]:
        """Allocate blocks for the tokens of the next step; return the grants and the sequences preempted for them."""
        per_step, pool, size = self._tokens_per_step, self.block_pool, self.block_pool.block_size
        needed_grants = [
            (s, pool.num_blocks_for(num_tokens) - len(s.blocks)) for s in decoding
            if (num_tokens := s.length + (s.num_outputs_in_flight + 1) * per_step - 1) > len(s.blocks) * size]
        if not needed_grants:
            return [], []
        if sum(num_blocks for _, num_blocks in needed_grants) > pool.num_free:
            for finishing in list(self._finishing.values()):
                self.free_blocks(finishing)
            needed_grants.sort(key=lambda grant: grant[0].priority_key)
        grants: list[BlockGrant] = []
        preempted: list[Sequence] = []
        for sequence, num_blocks in needed_grants:
            while sequence not in preempted and pool.num_free < num_blocks:
                preempted.append(self._next_to_preempt())
                self.preempt(preempted[-1])
            if sequence not in preempted:
                blocks = pool.allocate(num_blocks)
                sequence.blocks += blocks  # in place: `ChunkWrite.is_valid` compares the list object
                grants.append(BlockGrant(sequence.id, tuple(blocks)))
        return grants, preempted

    def _next_to_preempt(self) -> Sequence:
        """Return the sequence to preempt: the last in priority order, but never the first of all.

        Blocks are granted in priority order, so the preempted sequence is the requesting one or one behind it, and no
        block granted for this step is taken back.
        """
        first = min(sequence.priority_key for sequence in self)
        preemptible = [s for s in self if s.priority_key != first and not self._is_unpreemptible(s)]
        if not preemptible:
            raise RuntimeError("the first sequence does not fit beside those that cannot be preempted")
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
        while preemptible and not self.has_room_for(candidate, victims):
            victim = max(preemptible,
                         key=lambda s: (counts[s.request.tenant.name] / s.request.tenant.weight, s.priority_key))
            name, weight = victim.request.tenant.name, victim.request.tenant.weight
            if (counts[name] - 1) / weight < (counts[tenant.name] + 1) / tenant.weight:
                return []
            counts[name] -= 1
            preemptible.remove(victim)
            victims.append(victim)
        return victims if self.has_room_for(candidate, victims) else []

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
            if batch.sequences.pop(sequence.id, None) is not None:
                batch.needs_filter = True
                return
        raise AssertionError("the sequence is in no batch")

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
                self.block_pool.cancel_hash_reservation(block, block_hash)
        self.block_pool.free(sequence.reset_cache_state())
        self._finishing.pop(sequence.id, None)

    def list_block_tables(self) -> dict[int, list[int]]:
        """Return the blocks that each sequence holds, those that left their batch with tokens in flight included."""
        return {sequence.id: sequence.blocks for sequence in (*self, *self._finishing.values())}

    # -- messages for the shards

    def concat_batches(self) -> tuple[int, ...]:
        """Join all batches into the first; return the ids of all."""
        batch_ids = tuple(batch.id for batch in self.batches)
        for other in self.batches[1:]:
            self.batches[0].sequences |= other.sequences
        del self.batches[1:]
        return batch_ids

    def take_pending_filters(self) -> list[Filter]:
        """Return the Filters of all batches that need one, and drop the batches that have no sequence left."""
        filters = [Filter(batch.id, tuple(batch.sequences)) for batch in self.batches if batch.needs_filter]
        if filters:
            for batch in self.batches:
                batch.needs_filter = False
            self.batches = [batch for batch in self.batches if batch.sequences]
        return filters
