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
        self._since = -inf  # who came later waits for the next group
        self._left = 0  # as many may still join
        self._like: Likeness | None = None  # what all of them are like, if they must be alike and one is there
        self._is_begun = False  # its first members run
        self.wake_at = None

    def arrange(self, waiting: Iterable[Sequence], now: float) -> None:
        """Before a step: a group is over, and the next may form."""
        self.wake_at = None
        if self._policy.static and not len(self._running):
            self._is_begun = False
            self._form([s for s in waiting if s.request.wish is Wish.TEXT and not s.held and s.lacks is None], now)

    def admits(self, sequence: Sequence) -> bool:
        """Whether it may join the group at hand."""
        if not self._has_one(sequence):
            return True
        return (self._left > 0 and sequence.arrival <= self._since
                and (self._like is None or self._like == likeness(sequence)))

    def joined(self, sequence: Sequence) -> None:
        if not self._has_one(sequence):
            return
        self._left -= 1
        self._is_begun = True
        if self._policy.static_equal_lengths:
            self._like = likeness(sequence)

    def planned(self, waiting: Iterable[Sequence], *, crowded: bool) -> None:
        """A step is. Unless it had no tokens left for members, or they wait for what others of theirs compute, nobody
        joins any more."""
        if self._is_begun and self._left and not crowded and not any(
                self.admits(sequence) and self._running.waits_for_prefix(sequence) for sequence in waiting):
            self._left = 0

    def _has_one(self, sequence: Sequence) -> bool:
        return self._policy.static and sequence.request.wish is Wish.TEXT

    def _form(self, waiting: list[Sequence], now: float) -> None:
        self._left, self._like = 0, None
        if not waiting:
            return
        due = min(sequence.arrival for sequence in waiting) + self._policy.static_window
        if now >= due or self._most_alike(waiting) >= self._policy.max_batch_size:
            self._since, self._left = now, self._policy.max_batch_size
        else:
            self.wake_at = due

    def _most_alike(self, waiting: list[Sequence]) -> int:
        """How many could be in one group."""
        return max(Counter(map(likeness, waiting)).values()) if self._policy.static_equal_lengths else len(waiting)


def likeness(sequence: Sequence) -> Likeness:
    return len(sequence.request.prompt), sequence.request.max_new_tokens
