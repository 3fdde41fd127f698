"""Timer with a movable deadline: the event loop's timer is replaced only when the deadline changes."""

import asyncio
import time
from collections.abc import Callable

now = time.monotonic
TICK = 0.001  # seconds; the event loop counts in milliseconds and may call too early


class Alarm:
    """Timer with a movable deadline, in seconds of `time.monotonic`."""

    def __init__(self, ring: Callable[[], object]) -> None:
        """`ring` is called at the deadline or soon after it; it must call `set` for the next deadline."""
        self._ring = ring
        self._moment: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, moment: float | None) -> None:
        if moment == self._moment:
            return
        self.cancel()
        if moment is not None:
            self._moment = moment
            self._timer = asyncio.get_running_loop().call_later(max(moment - now(), 0.0) + TICK, self._rung)

    def cancel(self) -> None:
        self._moment = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rung(self) -> None:
        self.cancel()
        self._ring()
