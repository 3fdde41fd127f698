"""Readiness of the router: the shards are connected, and steps make progress.

While steps are in flight one of them must end within ten times the duration of recent steps. Time is an argument.
"""

from collections import deque

LEAST_BOUND = 5.0  # seconds that a step may always take
FACTOR = 10.0
NUM_RECENT = 512  # recent steps; FACTOR applies to the 99th percentile of their durations
STARTING, LEAVING = "the server is starting", "the server is shutting down"


class Progress:
    """Watchdog of the steps in flight: how many there are, and since when none of them has ended."""

    def __init__(self) -> None:
        self._since = 0.0
        self._recent: deque[float] = deque(maxlen=NUM_RECENT)
        self._foreseen: deque[float] = deque()  # predicted seconds of the steps in flight, the oldest first

    def sent(self, foreseen: float, now: float) -> None:
        """Add a step that was sent; `foreseen` is its predicted duration in seconds."""
        if not self._foreseen:
            self._since = now
        self._foreseen.append(foreseen)

    def ended(self, now: float) -> float:
        """Remove the oldest step, which was answered.

        Returns the seconds since it was sent, or since the answer of the step before if that came later.
        """
        self._foreseen.popleft()
        took, self._since = now - self._since, now
        self._recent.append(took)
        return took

    def lost(self) -> None:
        """Remove all steps."""
        self._foreseen.clear()

    @property
    def bound(self) -> float:
        """Seconds without progress that are accepted.

        The prediction for the oldest step counts like a recent duration: a long prompt may take longer than any recent
        step.
        """
        slowest = sorted(self._recent)[int(0.99 * (len(self._recent) - 1))] if self._recent else 0.0
        foreseen = self._foreseen[0] if self._foreseen else 0.0
        return max(LEAST_BOUND, FACTOR * slowest, FACTOR * foreseen)

    def waiting(self, now: float) -> float:
        """Return the seconds without progress; 0 if no step is in flight."""
        return now - self._since if self._foreseen else 0.0


class Health:
    """Readiness of the server; initially it is starting."""

    def __init__(self) -> None:
        self.progress = Progress()
        self._ailment = STARTING
        self._is_over = False

    def well(self) -> None:
        """Become ready: the shards are connected, and no step is in flight."""
        self.progress.lost()
        self._ailment = self._ailment if self._is_over else ""

    def ill(self, why: str) -> None:
        """Become unready until the next call of `well`."""
        self.progress.lost()
        self._ailment = self._ailment if self._is_over else why

    def leave(self, why: str) -> None:
        """Become unready for good. Steps in flight may still end."""
        self._ailment, self._is_over = why, True

    def ailment(self, now: float) -> str:
        """Return why the router should get no requests now, or an empty string."""
        waiting, bound = self.progress.waiting(now), self.progress.bound
        if not self._ailment and waiting > bound:
            return f"no step has ended for {waiting:.1f} seconds, where {bound:.1f} are the most"
        return self._ailment
