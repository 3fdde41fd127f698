"""The sequences that wait, best first. Knows nothing of room; the scheduler decides who may start."""

from bisect import insort
from collections.abc import Iterator

from router.sequence import Sequence


class Queue:
    def __init__(self) -> None:
        self._waiting: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    def push(self, sequence: Sequence) -> None:
        """A sequence that comes back keeps its arrival time, and with it a place near the front."""
        insort(self._waiting, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence)


def _rank(sequence: Sequence) -> tuple[float, int]:
    return sequence.rank
