"""Whose time runs out when. Knows nothing of what is done about it."""

from heapq import heappop, heappush
from math import inf

from router.sequence import Sequence, State


class Deadlines:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []
        self._numbers: set[int] = set()  # of those in the heap

    def add(self, sequence: Sequence) -> None:
        """Also one that was named and waits again; who is here already stays where it is."""
        if sequence.deadline != inf and sequence.number not in self._numbers:
            self._numbers.add(sequence.number)
            heappush(self._heap, (sequence.deadline, sequence.number, sequence))

    def next(self) -> float | None:
        """The earliest. To look changes nothing: who is told what a core decides may look at any time."""
        return self._heap[0][0] if self._heap else None

    def forget_ended(self) -> None:
        """Somebody is over: whoever is first here is not."""
        while self._heap and self._heap[0][2].state is State.OVER:
            self._pop()

    def due(self, now: float) -> list[Sequence]:
        """Each is named once, and again only if it was added again."""
        due = []
        while (next_one := self.next()) is not None and next_one <= now:
            due.append(self._pop())
            self.forget_ended()
        return due

    def _pop(self) -> Sequence:
        _, number, sequence = heappop(self._heap)
        self._numbers.remove(number)
        return sequence
