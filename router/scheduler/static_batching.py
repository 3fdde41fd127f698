"""Static batching: a group of sequences runs from its first step to its last while all others wait.

A group forms when no member of the one before runs. Its members are the sequences that wait at that time, in order of
turn, up to the batch size; the earliest waits for others as long as the window allows. A member that ends is not
replaced. Requests for embeddings or labels belong to no group.
"""

from collections import Counter
from collections.abc import Iterable
from math import inf

from router.request import RequestKind
from router.scheduler.running_sequences import RunningSequences
from router.scheduler.sequence import Sequence
from router.scheduler.settings import SchedulerSettings

RequestLengths = tuple[int, int]  # tokens of the prompt, max_new_tokens


class StaticGroups:
    """The current group of static batching. Without static batching every sequence is admitted."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._running: RunningSequences  # set by `use_running_sequences`
        self.wake_at: float | None = None  # when the window of the group being formed ends

    def use_running_sequences(self, running: RunningSequences) -> None:
        """Use this RunningSequences from now on; called whenever the shards' state is reset, and at the start."""
        self._running = running
        self._member_ids = set[int]()  # sequences that joined
        self._formed_at = -inf  # sequences that arrived later wait for the next group
        self._num_places_left = 0  # how many may still join
        # lengths of all members, if they must be equal and are decided
        self._member_lengths: RequestLengths | None = None
        self.wake_at = None

    @property
    def is_open(self) -> bool:
        """Whether another sequence may still join."""
        return self._num_places_left > 0

    def form_group_if_idle(self, waiting: Iterable[Sequence], now: float) -> None:
        """Form the next group if the last one is over. Called before each step and when a timer runs out."""
        self.wake_at = None
        if self._settings.static and not len(self._running):
            self._form_group([s for s in waiting if s.request.kind is RequestKind.GENERATE and not s.is_suspended
                              and s.missing_resource is None], now)

    def admits(self, sequence: Sequence) -> bool:
        """Return whether the sequence may run with the current group. A preempted member still may."""
        if (not self._settings.static or sequence.request.kind is not RequestKind.GENERATE
            or sequence.id in self._member_ids):
            return True
        return (self._num_places_left > 0 and sequence.submitted_at <= self._formed_at
                and (self._member_lengths is None or self._member_lengths == request_lengths(sequence)))

    def add_member(self, sequence: Sequence) -> None:
        if (not self._settings.static or sequence.request.kind is not RequestKind.GENERATE
            or sequence.id in self._member_ids):
            return
        self._member_ids.add(sequence.id)
        self._num_places_left -= 1
        if self._settings.static_equal_lengths:
            self._member_lengths = request_lengths(sequence)

    def close_unless_joinable(self, waiting: Iterable[Sequence], *, can_start_more: bool) -> None:
        """Close the group after a step was planned.

        The group stays open if another sequence could still start (`can_start_more`), or waits for a prefix that a
        running sequence computes.
        """
        if self._member_ids and self._num_places_left and not can_start_more and not any(
                self.admits(sequence) and self._running.is_waiting_for_prefix(sequence) for sequence in waiting):
            self._num_places_left = 0

    def _form_group(self, waiting: list[Sequence], now: float) -> None:
        self._member_ids.clear()
        self._num_places_left, self._member_lengths = 0, None
        if not waiting:
            return
        window_end = min(sequence.submitted_at for sequence in waiting) + self._settings.static_window_seconds
        if now < window_end:
            full_group_lengths = self._find_full_group_lengths(waiting)
            if full_group_lengths is None:
                self.wake_at = window_end
                return
            self._member_lengths = full_group_lengths if self._settings.static_equal_lengths else None
        self._formed_at, self._num_places_left = now, self._settings.max_batch_size

    def _find_full_group_lengths(self, waiting: list[Sequence]) -> RequestLengths | None:
        """Return the most common lengths if enough sequences wait to fill the group now, else None."""
        most_common = Counter(map(request_lengths, waiting)).most_common(1)[0]
        num_members = most_common[1] if self._settings.static_equal_lengths else len(waiting)
        return most_common[0] if num_members >= self._settings.max_batch_size else None


def request_lengths(sequence: Sequence) -> RequestLengths:
    return len(sequence.request.prompt), sequence.request.max_new_tokens
