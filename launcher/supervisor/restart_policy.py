"""Restart policy of child processes: growing pauses, and a limit of deaths in a window. Time is an argument."""

from collections.abc import Sequence

RESTART_PAUSES_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # seconds before each restart in a row; the last one repeats
MAX_DEATHS = 5  # the launcher gives up at this number of deaths within WINDOW_SECONDS
WINDOW_SECONDS = 300.0  # seconds; after this time without a death the pauses start from the first one again


class RestartPolicy:
    """Decides, from the deaths recorded so far, how long to wait before the next restart or whether to give up."""

    def __init__(self, pauses: Sequence[float]) -> None:
        self._pauses = pauses
        self._recent_deaths: list[float] = []
        self._num_consecutive_deaths = 0

    def choose_pause_after_death(self, now: float) -> float | None:
        """Record a death and return the seconds to wait before the restart, or None after too many deaths."""
        self._recent_deaths = [time for time in self._recent_deaths if now - time < WINDOW_SECONDS]
        self._num_consecutive_deaths = self._num_consecutive_deaths + 1 if self._recent_deaths else 1
        self._recent_deaths.append(now)
        if len(self._recent_deaths) >= MAX_DEATHS:
            return None
        return self._pauses[min(self._num_consecutive_deaths, len(self._pauses)) - 1]

    def excuse_deaths(self, num_deaths: int) -> None:
        """Forget the last deaths: their cause was found and will not come back."""
        del self._recent_deaths[-num_deaths:]
        self._num_consecutive_deaths = 0
