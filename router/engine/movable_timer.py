"""Timer with a movable deadline: the event loop's timer is replaced only when the deadline changes."""

import asyncio
import time
from collections.abc import Callable

now = time.monotonic
TIMER_SLACK_SECONDS = 0.001  # seconds; the event loop counts in milliseconds and may call too early


class MovableTimer:
    """Timer with a movable deadline, in seconds of `time.monotonic`."""

    def __init__(self, callback: Callable[[], object]) -> None:
        """`callback` is called at the deadline or soon after it; it must call `set_deadline` for the next deadline."""
        self._callback = callback
        self.deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set_deadline(self, deadline: float | None) -> None:
        if deadline == self.deadline:
            return
        self.cancel()
        if deadline is not None:
            self.deadline = deadline
            self._timer = asyncio.get_running_loop().call_later(max(deadline - now(), 0.0) + TIMER_SLACK_SECONDS,
                                                                self._fire)

    def cancel(self) -> None:
        self.deadline = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self.cancel()
        self._callback()
