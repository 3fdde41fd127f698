"""Contents of one forward pass: the sequences that decode and the chunks that run beside them."""

from dataclasses import dataclass, field

from shard.state.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Consecutive tokens that a step runs, of those that the sequence entered with: its prompt and, after a preemption,
    what it had generated."""

    sequence: Sequence
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def is_last(self) -> bool:
        return self.end == self.sequence.num_initial_tokens


@dataclass(slots=True)
class Step:
    """Contents of one forward pass. `failed_sequences` are sequences left out, which failed before or have no position
    left."""

    decodes: list[Sequence] = field(default_factory=list)
    chunks: list[PrefillChunk] = field(default_factory=list)
    failed_sequences: list[Sequence] = field(default_factory=list)

    @property
    def sequences(self) -> list[Sequence]:
        return self.decodes + [chunk.sequence for chunk in self.chunks]

    @property
    def sampled_sequences(self) -> list[Sequence]:
        """Sequences whose last token is known after this step: each yields a token or fails."""
        return self.decodes + [chunk.sequence for chunk in self.chunks if chunk.is_last]

    def drop_failed(self) -> None:
        """Move decoding sequences that have failed meanwhile to `failed_sequences`."""
        self.failed_sequences += [sequence for sequence in self.decodes if sequence.failure is not None]
        self.decodes = [sequence for sequence in self.decodes if sequence.failure is None]
