"""Logger of statistics: a line about the load every ten seconds while there is work."""

import asyncio
import logging

from router.scheduler.scheduler import Scheduler
from router.telemetry.server_metrics import ServerMetrics

INTERVAL_SECONDS = 10.0

logger = logging.getLogger(__name__)


class StatLogger:
    """Logger of how many requests run and how fast, with figures since the line before."""

    def __init__(self, scheduler: Scheduler, metrics: ServerMetrics) -> None:
        self._scheduler = scheduler
        self._metrics = metrics
        self._last_counts = self._read_counts()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            if (line := self.next_line(INTERVAL_SECONDS)) is not None:
                logger.info("%s", line)

    def next_line(self, seconds: float) -> str | None:
        """Return the line for the last `seconds`; None if nothing was computed and nothing waits."""
        counts = self._read_counts()
        prompt, generated, queried, found = (new - old for new, old in zip(counts, self._last_counts, strict=True))
        self._last_counts = counts
        num_waiting, blocks = len(self._scheduler.waiting), self._scheduler.running.block_pool
        num_running = self._scheduler.num_unfinished - num_waiting
        if not (prompt or generated or num_running or num_waiting):
            return None
        usage = 1 - blocks.num_free / blocks.num_blocks
        hit_rate = f", {found / queried:.0%} of prompt tokens found in it" if queried else ""
        return (f"{num_running} running, {num_waiting} waiting, {prompt / seconds:.1f} prompt tokens/s, "
                f"{generated / seconds:.1f} generated tokens/s, cache {usage:.0%} used{hit_rate}")

    def _read_counts(self) -> tuple[float, ...]:
        steps, requests = self._metrics.steps, self._metrics.requests
        return (steps.prompt_tokens.value, steps.generated_tokens.value, requests.prefix_query_tokens.value,
                requests.prefix_hit_tokens.value)
