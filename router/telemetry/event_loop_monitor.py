"""Monitor of the router's event loop: how long it stands, since a callback computes or the machine is busy. Whatever
happens in it meanwhile, tokens and probes included, is late by that time."""

import asyncio
import time

from router.telemetry.instruments import Histogram

INTERVAL_SECONDS = 0.02  # between two checks; a standstill may be found shorter by that


class EventLoopMonitor:
    """Monitor of the running loop's delays, and of the part of them that its own thread computed."""

    def __init__(self, delays: Histogram, computing: Histogram) -> None:
        self._delays, self._computing = delays, computing

    async def run(self) -> None:
        """Observe the loop until cancelled. To be run in its thread."""
        while True:
            wall_time, thread_time = time.monotonic(), time.thread_time()
            await asyncio.sleep(INTERVAL_SECONDS)
            delay = max(time.monotonic() - wall_time - INTERVAL_SECONDS, 0.0)
            self._delays.observe(delay)
            self._computing.observe(min(delay, time.thread_time() - thread_time))
