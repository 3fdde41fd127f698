"""Restart policy of child processes: growing pauses, and a limit of deaths in a window. Time is an argument."""

from collections.abc import Sequence

PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # seconds before each restart in a row; the last one repeats
MOST = 5  # the launcher gives up at this number of deaths within WINDOW
WINDOW = 300.0  # seconds; after this time without a death the pauses start from the first one again


class Deaths:
    def __init__(self, pauses: Sequence[float]) -> None:
        self._pauses = pauses
        self._recent: list[float] = []
        self._num_in_row = 0

    def pause(self, now: float) -> float | None:
        """Record a death and return the seconds to wait before the restart, or None after too many deaths."""
        self._recent = [time for time in self._recent if now - time < WINDOW]
        self._num_in_row = self._num_in_row + 1 if self._recent else 1
        self._recent.append(now)
        if len(self._recent) >= MOST:
            return None
        return self._pauses[min(self._num_in_row, len(self._pauses)) - 1]
