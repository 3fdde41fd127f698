"""Static batching: a group of sequences runs from its first step to its last while all others wait.

A group forms when no member of the one before runs. Its members are the sequences that wait at that time, in order of
turn, up to the batch size; the earliest waits for others as long as the window allows. A member that ends is not
replaced. Requests for embeddings or labels belong to no group.
"""

from collections import Counter
from collections.abc import Iterable
from math import inf

from router.request import Wish
from router.scheduler.running import Running
from router.scheduler.sequence import Sequence
from router.scheduler.settings import Policy

Likeness = tuple[int, int]  # tokens of the prompt, max_new_tokens


class Groups:
    """The current group of static batching. Without static batching every sequence is admitted."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.wake_at: float | None = None  # when the window of the group being formed ends

    def start_empty(self, running: Running) -> None:
        self._running = running
        self._members = set[int]()  # sequences that joined
        self._since = -inf  # sequences that arrived later wait for the next group
        self._left = 0  # how many may still join
        self._like: Likeness | None = None  # lengths of all members, if they must be equal and are decided
        self.wake_at = None

    @property
    def is_open(self) -> bool:
        """Whether another sequence may still join."""
        return self._left > 0

    def arrange(self, waiting: Iterable[Sequence], now: float) -> None:
        """Form the next group if the last one is over. Called before each step and when a timer runs out."""
        self.wake_at = None
        if self._policy.static and not len(self._running):
            self._form([s for s in waiting if s.request.wish is Wish.TEXT and not s.held and s.lacks is None], now)

    def admits(self, sequence: Sequence) -> bool:
        """Return whether the sequence may run with the current group. A preempted member still may."""
        if not self._policy.static or sequence.request.wish is not Wish.TEXT or sequence.number in self._members:
            return True
        return (self._left > 0 and sequence.arrival <= self._since
                and (self._like is None or self._like == likeness(sequence)))

    def joined(self, sequence: Sequence) -> None:
        if not self._policy.static or sequence.request.wish is not Wish.TEXT or sequence.number in self._members:
            return
        self._members.add(sequence.number)
        self._left -= 1
        if self._policy.static_equal_lengths:
            self._like = likeness(sequence)

    def planned(self, waiting: Iterable[Sequence], *, goes_on: bool) -> None:
        """Close the group after a step was planned.

        The group stays open if another sequence could still start (`goes_on`), or waits for a prefix that a running
        sequence computes.
        """
        if self._members and self._left and not goes_on and not any(
                self.admits(sequence) and self._running.waits_for_prefix(sequence) for sequence in waiting):
            self._left = 0

    def _form(self, waiting: list[Sequence], now: float) -> None:
        self._members.clear()
        self._left, self._like = 0, None
        if not waiting:
            return
        due = min(sequence.arrival for sequence in waiting) + self._policy.static_window
        if now < due:
            full = self._full(waiting)
            if full is None:
                self.wake_at = due
                return
            self._like = full if self._policy.static_equal_lengths else None
        self._since, self._left = now, self._policy.max_batch_size

    def _full(self, waiting: list[Sequence]) -> Likeness | None:
        """Return the most common lengths if enough sequences wait to fill the group now, else None."""
        alike = Counter(map(likeness, waiting)).most_common(1)[0]
        enough = alike[1] if self._policy.static_equal_lengths else len(waiting)
        return alike[0] if enough >= self._policy.max_batch_size else None


def likeness(sequence: Sequence) -> Likeness:
    return len(sequence.request.prompt), sequence.request.max_new_tokens
