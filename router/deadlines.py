"""Whose time runs out when. Knows nothing of what is done about it."""

from heapq import heappop, heappush
from math import inf

from router.sequence import Sequence, State


class Deadlines:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []

    def add(self, sequence: Sequence) -> None:
        if sequence.deadline != inf:
            heappush(self._heap, (sequence.deadline, sequence.number, sequence))

    def next(self) -> float | None:
        """The earliest of those who are not over."""
        while self._heap and self._heap[0][2].state is State.OVER:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[Sequence]:
        """Each is named once."""
        due = []
        while (next_one := self.next()) is not None and next_one <= now:
            due.append(heappop(self._heap)[2])
        return due
