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
        self._num_in_a_row, self._last_end_at = 0, -WINDOW_SECONDS  # deaths and losses

    def record_death_and_choose_pause(self, now: float) -> float | None:
        """Record a death and return the seconds to wait before the restart, or None after too many deaths."""
        self._recent_deaths = [time for time in self._recent_deaths if now - time < WINDOW_SECONDS]
        self._recent_deaths.append(now)
        pause = self.record_loss_and_choose_pause(now)
        return None if len(self._recent_deaths) >= MAX_DEATHS else pause

    def record_loss_and_choose_pause(self, now: float) -> float:
        """Record the end of something that is awaited, however often, and return the seconds to wait."""
        is_in_a_row = now - self._last_end_at < WINDOW_SECONDS
        self._num_in_a_row, self._last_end_at = self._num_in_a_row + 1 if is_in_a_row else 1, now
        return self._pauses[min(self._num_in_a_row, len(self._pauses)) - 1]

    def forget_recent_deaths(self, num_deaths: int) -> None:
        """Forget the last deaths: their cause was found and will not come back."""
        del self._recent_deaths[-num_deaths:]
        self._num_in_a_row = 0
