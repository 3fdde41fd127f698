"""Heap of sequences by deadline."""

from heapq import heappop, heappush
from math import inf

from router.scheduler.sequence import Sequence, State


class Deadlines:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []
        self._numbers: set[int] = set()  # of the sequences in the heap

    def add(self, sequence: Sequence) -> None:
        """Add a sequence if it has a deadline and is not in the heap; `due` may have returned it before."""
        if sequence.deadline != inf and sequence.number not in self._numbers:
            self._numbers.add(sequence.number)
            heappush(self._heap, (sequence.deadline, sequence.number, sequence))

    def next(self) -> float | None:
        """Return the earliest deadline. Must have no side effects: it is also called outside recorded calls."""
        return self._heap[0][0] if self._heap else None

    def forget_ended(self) -> None:
        """Remove ended sequences from the top of the heap, so that its first one is unfinished."""
        while self._heap and self._heap[0][2].state is State.OVER:
            self._pop()

    def due(self, now: float) -> list[Sequence]:
        """Remove and return the sequences whose deadline has passed."""
        due = []
        while (next_one := self.next()) is not None and next_one <= now:
            due.append(self._pop())
            self.forget_ended()
        return due

    def _pop(self) -> Sequence:
        _, number, sequence = heappop(self._heap)
        self._numbers.remove(number)
        return sequence
