"""Heap of sequences by deadline."""

from heapq import heappop, heappush
from math import inf

from router.scheduler.sequence import Sequence, SequenceState


class DeadlineHeap:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []
        self._sequence_ids: set[int] = set()  # of the sequences in the heap

    def add(self, sequence: Sequence) -> None:
        """Add a sequence if it has a deadline and is not in the heap; `pop_expired` may have returned it before."""
        if sequence.deadline != inf and sequence.id not in self._sequence_ids:
            self._sequence_ids.add(sequence.id)
            heappush(self._heap, (sequence.deadline, sequence.id, sequence))

    def earliest_deadline(self) -> float | None:
        """Return the earliest deadline. Must have no side effects: it is also called outside recorded calls."""
        return self._heap[0][0] if self._heap else None

    def discard_finished(self) -> None:
        """Remove ended sequences from the top of the heap, so that its first one is unfinished."""
        while self._heap and self._heap[0][2].state is SequenceState.FINISHED:
            self._pop()

    def pop_expired(self, now: float) -> list[Sequence]:
        """Remove and return the sequences whose deadline has passed."""
        expired = []
        while (deadline := self.earliest_deadline()) is not None and deadline <= now:
            expired.append(self._pop())
            self.discard_finished()
        return expired

    def _pop(self) -> Sequence:
        _, sequence_id, sequence = heappop(self._heap)
        self._sequence_ids.remove(sequence_id)
        return sequence
