"""Batch of sequences that step together, with the same number in router and shards."""

from collections.abc import Iterator

from router.scheduler.plan import Filter
from router.scheduler.sequence import Sequence


class Batch:
    def __init__(self, number: int) -> None:
        self.number = number
        self._rows: dict[int, Sequence] = {}
        self._filter_owed = False

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._rows.values())

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.number in self._rows

    def add(self, sequence: Sequence) -> None:
        self._rows[sequence.number] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Remove the sequence here; the shards remove it by the Filter that is owed from now on (`owed_filter`)."""
        del self._rows[sequence.number]
        self._filter_owed = True

    def absorb(self, other: "Batch") -> None:
        self._rows |= other._rows

    def owed_filter(self) -> Filter | None:
        if not self._filter_owed:
            return None
        self._filter_owed = False
        return Filter(self.number, tuple(self._rows))
