"""Whether somebody who comes now would be served: shards that are there, and steps that come to their end.

Forward progress is what counts: while steps are under way one has to end now and then, within ten times of what they
took of late. Without clock and I/O: time is an argument. Knows neither what a step is nor who asks.
"""

from collections import deque

LEAST_BOUND = 5.0  # seconds without a step's end that mean nothing
FACTOR = 10.0
NUM_RECENT = 512  # steps of which the slowest hundredth says how long one may take
STARTING, LEAVING = "the server is starting", "the server is shutting down"


class Progress:
    """Steps that are under way, counted, and since when none of them has ended."""

    def __init__(self) -> None:
        self._since = 0.0
        self._recent: deque[float] = deque(maxlen=NUM_RECENT)
        self._foreseen: deque[float] = deque()  # of the steps under way, the oldest first

    def sent(self, foreseen: float, now: float) -> None:
        """One more step is under way, and should take so many seconds."""
        if not self._foreseen:
            self._since = now
        self._foreseen.append(foreseen)

    def ended(self, now: float) -> float:
        """The oldest step is answered. Returns the seconds since it was sent, or the one before it was answered."""
        self._foreseen.popleft()
        took, self._since = now - self._since, now
        self._recent.append(took)
        return took

    def lost(self) -> None:
        """Nothing is under way any more."""
        self._foreseen.clear()

    @property
    def bound(self) -> float:
        """Seconds for which a step may be awaited. A long prompt may take longer than anything of late, and is known
        to: what the oldest should take counts as if it had been seen."""
        slowest = sorted(self._recent)[int(0.99 * (len(self._recent) - 1))] if self._recent else 0.0
        foreseen = self._foreseen[0] if self._foreseen else 0.0
        return max(LEAST_BOUND, FACTOR * slowest, FACTOR * foreseen)

    def waiting(self, now: float) -> float:
        """Seconds since the last sign of life of what is under way; 0 when nothing is."""
        return now - self._since if self._foreseen else 0.0


class Health:
    """Begins as that of a server that starts."""

    def __init__(self) -> None:
        self.progress = Progress()
        self._ailment = STARTING
        self._is_over = False

    def well(self) -> None:
        """The shards are there, and nothing is under way."""
        self.progress.lost()
        self._ailment = self._ailment if self._is_over else ""

    def ill(self, why: str) -> None:
        """Until further notice."""
        self.progress.lost()
        self._ailment = self._ailment if self._is_over else why

    def leave(self, why: str) -> None:
        """For good. What is under way may still come to its end."""
        self._ailment, self._is_over = why, True

    def ailment(self, now: float) -> str:
        """Why nobody should be sent here; nothing when all is well."""
        waiting, bound = self.progress.waiting(now), self.progress.bound
        if not self._ailment and waiting > bound:
            return f"no step has ended for {waiting:.1f} seconds, where {bound:.1f} are the most"
        return self._ailment
