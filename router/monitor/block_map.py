"""Map of the cache's blocks, which shows who holds each of them."""

import time
from itertools import groupby
from typing import Any

from router.scheduler.block_pool import SHARED_BLOCK
from router.scheduler.scheduler import Scheduler

SECONDS_BETWEEN_MAPS = 0.5  # of frames, or more if they take long
MAP_COST_FRACTION = 0.005  # of a processor's time, that maps may take


class BlockMap:
    """Map of the cache's blocks, for MAP_COST_FRACTION of a processor's time at most: until a new one is due, states
    have the one before."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._next_at = self._next_frame_at = 0.0
        self._num_shared = 0
        self._runs: list[tuple[int, int]] = []
        self._was_in_frame = False  # these runs were

    def describe_counts(self) -> dict[str, Any]:
        blocks = self._scheduler.running.block_pool
        num_used = blocks.num_blocks - blocks.num_free
        return {"total": blocks.num_blocks, "used": num_used, "cached": blocks.num_evictable,
                "free": blocks.num_free - blocks.num_evictable, "shared": min(self._num_shared, num_used)}

    def describe(self, now: float) -> dict[str, Any]:
        """Return the counts and the map."""
        self._update_if_due(now)
        return self.describe_counts() | {"map": self._runs}

    def describe_for_frame(self, now: float) -> dict[str, Any]:
        """Return the counts, with the map if it is due and has changed."""
        if now < self._next_frame_at:
            return self.describe_counts()
        self._update_if_due(now)
        if self._was_in_frame:
            return self.describe_counts()
        self._was_in_frame, self._next_frame_at = True, now + SECONDS_BETWEEN_MAPS
        return self.describe_counts() | {"map": self._runs}

    def _update_if_due(self, now: float) -> None:
        if now < self._next_at:
            return
        started_at, running, runs_before = time.thread_time(), self._scheduler.running, self._runs
        holders = running.block_pool.list_holders(running.list_block_tables())
        self._runs = [(holder, len([*blocks])) for holder, blocks in groupby(holders)]
        self._num_shared = sum(length for holder, length in self._runs if holder == SHARED_BLOCK)
        self._was_in_frame = self._was_in_frame and self._runs == runs_before
        self._next_at = now + (time.thread_time() - started_at) / MAP_COST_FRACTION
