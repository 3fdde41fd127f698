"""How often children died of late, and what that means for the next one. Without a clock."""

from collections.abc import Sequence

PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # seconds before each replacement in a row; the last one stays
MOST = 5  # deaths within WINDOW with which we give up
WINDOW = 300.0  # seconds; a row ends when so long nobody died


class Deaths:
    def __init__(self, pauses: Sequence[float]) -> None:
        self._pauses = pauses
        self._recent: list[float] = []
        self._num_in_row = 0

    def pause(self, now: float) -> float | None:
        """Note a death: the seconds to wait before the replacement, None when there were too many."""
        self._recent = [time for time in self._recent if now - time < WINDOW]
        self._num_in_row = self._num_in_row + 1 if self._recent else 1
        self._recent.append(now)
        if len(self._recent) >= MOST:
            return None
        return self._pauses[min(self._num_in_row, len(self._pauses)) - 1]
