"""Batch of sequences that step together, with the same id in router and shards."""

from collections.abc import Iterator

from router.scheduler.messages import Filter
from router.scheduler.sequence import Sequence


class Batch:
    """Sequences that step together, known to router and shards by the same id."""

    def __init__(self, batch_id: int) -> None:
        self.id = batch_id
        self._sequences: dict[int, Sequence] = {}
        self._needs_filter = False

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.id in self._sequences

    def add(self, sequence: Sequence) -> None:
        self._sequences[sequence.id] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Remove the sequence here; the shards remove it by the Filter that is owed from now on
        (`take_pending_filter`)."""
        del self._sequences[sequence.id]
        self._needs_filter = True

    def absorb(self, other: "Batch") -> None:
        self._sequences |= other._sequences

    def take_pending_filter(self) -> Filter | None:
        if not self._needs_filter:
            return None
        self._needs_filter = False
        return Filter(self.id, tuple(self._sequences))
