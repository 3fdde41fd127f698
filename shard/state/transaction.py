"""Changes that one message makes to one batch: read and checked in the order in which they apply, then applied at once.

Nothing changes before `apply`, and every check comes before it. A Filter or Concat is handled in the same way as a
separate message and as a part of a step's message.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shard.errors import Malformed, Refused
from shard.pb import shard_pb2 as pb
from shard.state.blocks import Claims
from shard.state.sequence import Sequence, column, distinct, ragged

if TYPE_CHECKING:  # the ledger makes changes, and each changes its ledger
    from shard.state.ledger import Ledger

Members = dict[int, Sequence]


@dataclass(frozen=True, slots=True)
class Chunk:
    sequence: Sequence
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def completes(self) -> bool:
        return self.end == self.sequence.num_given


@dataclass(slots=True)
class Step:
    """Contents of one forward pass. `failed` are sequences left out, which failed before or have no position left."""

    decodes: list[Sequence] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    failed: list[Sequence] = field(default_factory=list)

    @property
    def sequences(self) -> list[Sequence]:
        return self.decodes + [chunk.sequence for chunk in self.chunks]

    @property
    def yielding(self) -> list[Sequence]:
        """Sequences whose last token is known after this step: each yields a token or fails."""
        return self.decodes + [chunk.sequence for chunk in self.chunks if chunk.completes]

    def leave_out_failed(self) -> None:
        """Move decoding sequences that have failed meanwhile to `failed`."""
        self.failed += [sequence for sequence in self.decodes if sequence.failure is not None]
        self.decodes = [sequence for sequence in self.decodes if sequence.failure is None]


class Change:
    """Checks of one message against the ledger, and its effects on one batch, which `apply` makes."""

    def __init__(self, ledger: "Ledger", batch: int) -> None:
        if not ledger.blocks.count:
            raise Refused("there is no cache yet: Warmup comes first")
        self._ledger = ledger
        self._batch = batch
        self._members = ledger.batches.get(batch, {})
        self._claims = Claims(ledger.blocks)
        self._dropped: Members = {}
        self._joined: list[int] = []
        self._granted: dict[int, list[int]] = {}
        self._newcomers: list[Sequence] = []
        self._skipped: list[Chunk] = []
        self._step = Step()

    def ride(self, request: pb.PrefillRequest | pb.DecodeRequest) -> None:
        """Add the Keep, Join and Grants that a step's message may carry, in the order in which they apply."""
        if request.HasField("keep"):
            self.keep(request.keep.sequences)
        if request.HasField("join"):
            self.join(request.join.batches)
        if request.HasField("grants"):
            self._grant(request.grants)

    def keep(self, ids: Iterable[int]) -> None:
        self._check_known([self._batch])
        kept = dict.fromkeys(distinct(ids, "kept sequences"))
        self._check_members(kept)
        self._dropped = {i: sequence for i, sequence in self._members.items() if i not in kept}
        self._members = {i: sequence for i, sequence in self._members.items() if i in kept}
        for sequence in self._dropped.values():
            self._claims.release(sequence.blocks)

    def join(self, batches: Iterable[int]) -> None:
        self._joined = distinct(batches, "batches")
        if not self._joined or self._batch in self._joined:
            raise Malformed("at least two different batches are joined")
        self._check_known([self._batch, *self._joined])
        if not self._members:
            raise Refused(f"batch {self._batch} was forgotten")
        self._members = dict(self._members)
        for batch in self._joined:
            self._members |= self._ledger.batches[batch]

    def _grant(self, grants: pb.Grants) -> None:
        ids = distinct(grants.sequences, "granted sequences")
        self._check_members(ids)
        blocks = ragged(grants.blocks, column(grants.num_blocks, len(ids), 0, "num_blocks"), "blocks")
        if max(grants.blocks, default=0) >= self._ledger.blocks.count:
            raise Malformed("a granted block does not exist")
        self._claims.take(grants.blocks)
        self._granted = dict(zip(ids, blocks, strict=True))

    def decode(self) -> None:
        """Let every ready sequence decode."""
        decodes, room = self._step.decodes, self._ledger.room
        for sequence in self._members.values():
            if sequence.ready:
                if sequence.failure is None and (most := room(sequence)) > 0:
                    self._check_places(sequence, len(sequence.tokens) - 1 + most)
                    decodes.append(sequence)
                else:
                    self._step.failed.append(sequence)
        if len(decodes) > self._ledger.max_decodes:
            raise Refused(f"{len(decodes)} sequences would decode, warm-up allowed {self._ledger.max_decodes}")

    def _check_places(self, sequence: Sequence, needed: int) -> None:
        """Check that the blocks have slots for the last token and for all tokens that the step may yield but the last.
        """
        num_blocks, size = len(sequence.blocks), self._ledger.blocks.size
        if needed > num_blocks * size and needed > (num_blocks + len(self._granted.get(sequence.id, ()))) * size:
            raise Refused(f"sequence {sequence.id} has too few blocks for {needed} places")

    def enter(self, newcomers: list[Sequence]) -> None:
        for sequence in newcomers:
            if sequence.id in self._ledger.sequences and sequence.id not in self._dropped:
                raise Refused(f"sequence {sequence.id} is here already")
            self._check_loaded(pb.KIND_ADAPTER, sequence.adapter)
            self._check_loaded(pb.KIND_GRAMMAR, sequence.grammar)
            num_cached = sequence.num_cached // self._ledger.blocks.size
            self._claims.share(sequence.blocks[:num_cached])
            self._claims.take(sequence.blocks[num_cached:])
        self._newcomers = newcomers
        self._members = self._members | {sequence.id: sequence for sequence in newcomers}

    def run(self, chunks: pb.Chunks) -> None:
        ids = distinct(chunks.sequences, "sequences with chunks")
        starts, lengths = (column(values, len(ids), 0, "chunks") for values in (chunks.starts, chunks.lengths))
        column(chunks.traceparents, len(ids), "", "traceparents")
        self._check_members(ids)
        for i, start, length in zip(ids, starts, lengths, strict=True):
            chunk = Chunk(self._members[i], start, length)
            self._check_chunk(chunk)
            self._step.chunks.append(chunk)
        if sum(lengths) > self._ledger.max_chunk_tokens:
            raise Refused(f"{sum(lengths)} prompt tokens would run, warm-up allowed {self._ledger.max_chunk_tokens}")
        self._skip_failed_chunks()

    def _skip_failed_chunks(self) -> None:
        """Do not run chunks of failed sequences. `apply_step` still records them, since messages under way rely on it.
        """
        self._skipped = [chunk for chunk in self._step.chunks if chunk.sequence.failure is not None]
        self._step.chunks = [chunk for chunk in self._step.chunks if chunk.sequence.failure is None]
        self._step.failed += [chunk.sequence for chunk in self._skipped]

    def _check_chunk(self, chunk: Chunk) -> None:
        sequence = chunk.sequence
        if not chunk.length:
            raise Malformed(f"the chunk of sequence {sequence.id} is empty")
        if chunk.start != sequence.computed:
            raise Refused(f"the chunk of sequence {sequence.id} starts at {chunk.start}, computed are "
                          f"{sequence.computed} tokens")
        if chunk.end > sequence.num_given:
            raise Refused(f"the chunk of sequence {sequence.id} ends at {chunk.end}, it came with "
                          f"{sequence.num_given} tokens")

    def _check_known(self, batches: Iterable[int]) -> None:
        for batch in batches:
            if batch not in self._ledger.batches:
                raise Refused(f"batch {batch} is unknown")

    def _check_members(self, ids: Iterable[int]) -> None:
        for i in ids:
            if i not in self._members:
                raise Refused(f"sequence {i} is not in batch {self._batch}")

    def _check_loaded(self, kind: pb.Kind, number: int) -> None:
        if number and number not in self._ledger.loaded[kind]:
            raise Refused(f"{pb.Kind.Name(kind)} {number} is not loaded")

    def apply_step(self) -> Step:
        if not self._step.decodes and not self._step.chunks and not self._step.failed:
            raise Refused(f"the step is empty: no sequence of batch {self._batch} is ready, and no chunk was named")
        self.apply()
        for chunk in self._skipped:
            chunk.sequence.computed = chunk.end
        for sequence in self._step.failed:
            sequence.failure = sequence.failure or pb.NO_ROOM
        return self._step

    def apply(self) -> None:
        ledger = self._ledger
        for sequence in self._dropped.values():
            ledger.blocks.release(sequence.blocks)
            del ledger.sequences[sequence.id]
        for batch in self._joined:
            del ledger.batches[batch]
        for i, blocks in self._granted.items():
            ledger.blocks.take(blocks)
            self._members[i].blocks += blocks
        for sequence in self._newcomers:
            num_cached = sequence.num_cached // ledger.blocks.size
            ledger.blocks.share(sequence.blocks[:num_cached])
            ledger.blocks.take(sequence.blocks[num_cached:])
            ledger.sequences[sequence.id] = sequence
        ledger.batches.pop(self._batch, None)
        if self._members:
            ledger.batches[self._batch] = self._members
