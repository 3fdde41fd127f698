"""Changes that one message makes to batches: read and checked in the order in which they apply, then applied at once.

Nothing changes before `apply`, and every check comes before it. A Filter or Concat is handled in the same way as a
separate message and as a part of a step's message.
"""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from shard.errors import MalformedMessage, RejectedMessage
from shard.pb import shard_pb2 as pb
from shard.state.block_usage import BlockUsage
from shard.state.sequence import Sequence, parse_column, parse_distinct_ids, split_by_counts
from shard.state.step import PrefillChunk, Step

if TYPE_CHECKING:  # ShardState makes transactions, and each changes its ShardState
    from shard.state.shard_state import ShardState

SequencesById = dict[int, Sequence]


class BatchTransaction:
    """Checks of one message against the shard's state, and its effects, which `apply` makes: on the batch that the
    message names and, for a join, on the batches that are joined to it."""

    def __init__(self, shard_state: "ShardState", batch_id: int) -> None:
        if not shard_state.block_usage.num_blocks:
            raise RejectedMessage("there is no cache yet: Warmup comes first")
        self._shard_state = shard_state
        self._batch_id = batch_id
        self._sequences = shard_state.batches.get(batch_id, {})
        self._block_claims = BlockClaimChecker(shard_state.block_usage)
        self._dropped_sequences: SequencesById = {}
        self._joined_batch_ids: list[int] = []
        self._granted_blocks: dict[int, list[int]] = {}
        self._new_sequences: list[Sequence] = []
        self._skipped_chunks: list[PrefillChunk] = []
        self._step = Step()

    def add_piggybacked_changes(self, request: pb.PrefillRequest | pb.DecodeRequest) -> None:
        """Add the Keep, Join and Grants that a step's message may carry, in the order in which they apply."""
        if request.HasField("keep"):
            self.keep_sequences(request.keep.sequences)
        if request.HasField("join"):
            self.join_batches(request.join.batches)
        if request.HasField("grants"):
            self._grant_blocks(request.grants)

    def keep_sequences(self, sequence_ids: Iterable[int]) -> None:
        self._check_batches_exist([self._batch_id])
        kept_ids = dict.fromkeys(parse_distinct_ids(sequence_ids, "kept sequences"))
        self._check_in_batch(kept_ids)
        self._dropped_sequences = {i: sequence for i, sequence in self._sequences.items() if i not in kept_ids}
        self._sequences = {i: sequence for i, sequence in self._sequences.items() if i in kept_ids}
        for sequence in self._dropped_sequences.values():
            self._block_claims.note_release(sequence.blocks)

    def join_batches(self, batch_ids: Iterable[int]) -> None:
        self._joined_batch_ids = parse_distinct_ids(batch_ids, "batches")
        if not self._joined_batch_ids or self._batch_id in self._joined_batch_ids:
            raise MalformedMessage("at least two different batches are joined")
        self._check_batches_exist([self._batch_id, *self._joined_batch_ids])
        if not self._sequences:
            raise RejectedMessage(f"batch {self._batch_id} was forgotten")
        self._sequences = dict(self._sequences)
        for batch in self._joined_batch_ids:
            self._sequences |= self._shard_state.batches[batch]

    def _grant_blocks(self, grants: pb.Grants) -> None:
        ids = parse_distinct_ids(grants.sequences, "granted sequences")
        self._check_in_batch(ids)
        blocks = split_by_counts(grants.blocks, parse_column(grants.num_blocks, len(ids), 0, "num_blocks"), "blocks")
        if max(grants.blocks, default=0) >= self._shard_state.block_usage.num_blocks:
            raise MalformedMessage("a granted block does not exist")
        self._block_claims.check_acquire(grants.blocks)
        self._granted_blocks = dict(zip(ids, blocks, strict=True))

    def add_decodes(self) -> None:
        """Let every ready sequence decode."""
        decodes, max_tokens_per_decode = self._step.decodes, self._shard_state.max_tokens_per_decode
        block_size = self._shard_state.block_usage.block_size
        for sequence in self._sequences.values():
            if sequence.num_computed_tokens < sequence.num_tokens_to_prefill:  # not `is_prefilled`: a call for each
                continue
            if sequence.failure is not None or (num_new_tokens := max_tokens_per_decode(sequence)) <= 0:
                self._step.failed_sequences.append(sequence)
                continue
            # It needs a slot for each token that the step writes: all but the last that it may yield.
            num_slots, num_blocks = len(sequence.tokens) - 1 + num_new_tokens, len(sequence.blocks)
            if (num_slots > num_blocks * block_size
                and num_slots > (num_blocks + len(self._granted_blocks.get(sequence.id, ()))) * block_size):
                raise RejectedMessage(f"sequence {sequence.id} has too few blocks for {num_slots} places")
            decodes.append(sequence)
        if len(decodes) > self._shard_state.max_decodes:
            raise RejectedMessage(
                f"{len(decodes)} sequences would decode, warm-up allowed {self._shard_state.max_decodes}")

    def add_sequences(self, new_sequences: list[Sequence]) -> None:
        for sequence in new_sequences:
            if sequence.id in self._shard_state.sequences and sequence.id not in self._dropped_sequences:
                raise RejectedMessage(f"sequence {sequence.id} is here already")
            self._shard_state.check_resource_loaded(pb.KIND_ADAPTER, sequence.adapter_id)
            self._shard_state.check_resource_loaded(pb.KIND_GRAMMAR, sequence.grammar_id)
            num_cached_blocks = sequence.num_cached_tokens // self._shard_state.block_usage.block_size
            self._block_claims.check_share(sequence.blocks[:num_cached_blocks])
            self._block_claims.check_acquire(sequence.blocks[num_cached_blocks:])
        self._new_sequences = new_sequences
        self._sequences = self._sequences | {sequence.id: sequence for sequence in new_sequences}

    def add_chunks(self, chunks: pb.Chunks) -> None:
        ids = parse_distinct_ids(chunks.sequences, "sequences with chunks")
        starts, lengths = (parse_column(values, len(ids), 0, "chunks") for values in (chunks.starts, chunks.lengths))
        parse_column(chunks.traceparents, len(ids), "", "traceparents")
        self._check_in_batch(ids)
        for i, start, length in zip(ids, starts, lengths, strict=True):
            sequence = self._sequences[i]
            if not length:
                raise MalformedMessage(f"the chunk of sequence {i} is empty")
            if start != sequence.num_computed_tokens:
                raise RejectedMessage(f"the chunk of sequence {i} starts at {start}, computed are "
                                      f"{sequence.num_computed_tokens} tokens")
            if start + length > sequence.num_tokens_to_prefill:
                raise RejectedMessage(f"the chunk of sequence {i} ends at {start + length}, it came with "
                                      f"{sequence.num_tokens_to_prefill} tokens")
            self._step.chunks.append(PrefillChunk(sequence, start, length))
        if sum(lengths) > self._shard_state.max_chunk_tokens:
            raise RejectedMessage(
                f"{sum(lengths)} prompt tokens would run, warm-up allowed {self._shard_state.max_chunk_tokens}")
        # Chunks of failed sequences are not run. `apply_step` still records them: the router may have sent the next
        # chunk already, which starts where this one ends.
        self._skipped_chunks = [chunk for chunk in self._step.chunks if chunk.sequence.failure is not None]
        self._step.chunks = [chunk for chunk in self._step.chunks if chunk.sequence.failure is None]
        self._step.failed_sequences += [chunk.sequence for chunk in self._skipped_chunks]

    def _check_batches_exist(self, batch_ids: Iterable[int]) -> None:
        for batch in batch_ids:
            if batch not in self._shard_state.batches:
                raise RejectedMessage(f"batch {batch} is unknown")

    def _check_in_batch(self, sequence_ids: Iterable[int]) -> None:
        for i in sequence_ids:
            if i not in self._sequences:
                raise RejectedMessage(f"sequence {i} is not in batch {self._batch_id}")

    def apply_step(self) -> Step:
        """Apply a message that runs a step, and return the step."""
        if not self._step.decodes and not self._step.chunks and not self._step.failed_sequences:
            raise RejectedMessage(
                f"the step is empty: no sequence of batch {self._batch_id} is ready, and no chunk was named")
        self.apply()
        for chunk in self._skipped_chunks:
            chunk.sequence.num_computed_tokens = chunk.end
        for sequence in self._step.failed_sequences:
            sequence.failure = sequence.failure or pb.NO_ROOM
        return self._step

    def apply(self) -> None:
        """Make the changes to batches, sequences and blocks. The step, if there is one, changes nothing yet."""
        shard_state = self._shard_state
        for sequence in self._dropped_sequences.values():
            shard_state.block_usage.release(sequence.blocks)
            del shard_state.sequences[sequence.id]
        for batch in self._joined_batch_ids:
            del shard_state.batches[batch]
        for i, blocks in self._granted_blocks.items():
            shard_state.block_usage.acquire(blocks)
            self._sequences[i].blocks += blocks
        for sequence in self._new_sequences:
            num_cached_blocks = sequence.num_cached_tokens // shard_state.block_usage.block_size
            shard_state.block_usage.share(sequence.blocks[:num_cached_blocks])
            shard_state.block_usage.acquire(sequence.blocks[num_cached_blocks:])
            shard_state.sequences[sequence.id] = sequence
        shard_state.batches.pop(self._batch_id, None)
        if self._sequences:
            shard_state.batches[self._batch_id] = self._sequences


class BlockClaimChecker:
    """Changes that one message makes to the blocks, checked as the message is read, before anything is applied."""

    def __init__(self, block_usage: BlockUsage) -> None:
        self._block_usage = block_usage
        self._num_releases: Counter[int] = Counter()
        self._acquired: set[int] = set()
        self._shared: set[int] = set()

    def note_release(self, blocks: Iterable[int]) -> None:
        self._num_releases.update(blocks)

    def check_acquire(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block in self._acquired or block in self._shared:
                raise MalformedMessage(f"block {block} is named twice")
            if self._block_usage.num_holders[block] > self._num_releases[block]:
                raise RejectedMessage(f"block {block} is held by another sequence")
            self._acquired.add(block)

    def check_share(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block in self._acquired:
                raise MalformedMessage(f"block {block} is named as cached and as free")
            if not self._block_usage.is_full[block]:
                raise RejectedMessage(f"block {block} is named as cached and was never filled")
            self._shared.add(block)
