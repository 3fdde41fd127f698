"""Static batching: who runs together from its first step to its last, while everybody else waits.

A group forms when nobody of the one before runs. It consists of those who wait then, the first in turn before the
others, as many as may run at once; whoever came first waits for others as long as the window says. Who ends leaves, and
nobody takes the place. Texts that are run as a whole belong to none. Knows nothing of steps.
"""

from collections import Counter
from collections.abc import Iterable
from math import inf

from router.policy import Policy
from router.request import Wish
from router.running import Running
from router.sequence import Sequence

Likeness = tuple[int, int]  # tokens of the prompt, and most that are generated


class Groups:
    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.wake_at: float | None = None  # when time alone makes a group complete

    def start_empty(self, running: Running) -> None:
        self._running = running
        self._members = set[int]()  # who joined
        self._since = -inf  # who came later waits for the next group
        self._left = 0  # as many may still join
        self._like: Likeness | None = None  # what all of them are like, if they must be alike and it is known
        self.wake_at = None

    @property
    def is_open(self) -> bool:
        """Whether somebody may still join."""
        return self._left > 0

    def arrange(self, waiting: Iterable[Sequence], now: float) -> None:
        """Before a step: a group is over, and the next may form."""
        self.wake_at = None
        if self._policy.static and not len(self._running):
            self._form([s for s in waiting if s.request.wish is Wish.TEXT and not s.held and s.lacks is None], now)

    def admits(self, sequence: Sequence) -> bool:
        """Whether it may run with the group at hand. Who was of it and yielded still is."""
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
        """A step is. Unless somebody could still start, or waits for what others of the group compute, nobody joins any
        more."""
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
        """What a group that need not wait for more is like."""
        alike = Counter(map(likeness, waiting)).most_common(1)[0]
        enough = alike[1] if self._policy.static_equal_lengths else len(waiting)
        return alike[0] if enough >= self._policy.max_batch_size else None


def likeness(sequence: Sequence) -> Likeness:
    return len(sequence.request.prompt), sequence.request.max_new_tokens
