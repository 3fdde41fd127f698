"""Batch of sequences that step together, with the same id in router and shards."""

from collections.abc import Iterator

from router.scheduler.messages import Filter
from router.scheduler.sequence import Sequence


class Batch:
    """Sequences that step together, known to router and shards by the same id."""

    def __init__(self, batch_id: int) -> None:
        self.id = batch_id
        self.sequences: dict[int, Sequence] = {}
        self.needs_filter = False

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.sequences.values())

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.id in self.sequences

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
