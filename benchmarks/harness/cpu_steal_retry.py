"""Repetition of measurements that lost CPU time to other users of the host (steal time).

The host of a virtual machine may give its processors to others for seconds; Linux reports how much in `/proc/stat`.
"""

import os
import time
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_ATTEMPTS = 20
MAX_STEAL_SHARE = 0.05  # largest stolen share of the processors with which a turn counts
STEAL_FIELD_INDEX = 8  # index of the steal time in the first line of /proc/stat


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """Result of one attempt, and the share of CPU time that was stolen during it."""

    result: T
    steal_share: float  # share of the processors' time


def read_steal_seconds() -> float:
    """Return the steal time of all processors together since the machine started."""
    with open("/proc/stat", encoding="ascii") as file:
        return int(file.readline().split()[STEAL_FIELD_INDEX]) / os.sysconf("SC_CLK_TCK")


class CpuStealRetry(Generic[T]):
    """Attempts at one turn, until at most `max_steal_share` of the processors was stolen in one, or `max_attempts` were
    made."""

    def __init__(self, max_steal_share: float, max_attempts: int = MAX_ATTEMPTS) -> None:
        self._max_steal_share, self._max_attempts = max_steal_share, max_attempts
        self._attempts: list[Attempt[T]] = []

    def begin_next_attempt(self) -> bool:
        """Return whether another attempt is needed, and start its clock."""
        self._started_at, self._steal_seconds_at_start = time.perf_counter(), read_steal_seconds()
        return not self._attempts or (len(self._attempts) < self._max_attempts and self._attempts[-1].steal_share
                                      > self._max_steal_share)

    def end_attempt(self, result: T) -> None:
        processor_seconds = (time.perf_counter() - self._started_at) * (os.cpu_count() or 1)
        self._attempts.append(Attempt(result,
                                      (read_steal_seconds() - self._steal_seconds_at_start) / processor_seconds))

    @property
    def best_attempt(self) -> Attempt[T]:
        """The attempt with the least steal time."""
        return min(self._attempts, key=lambda turn: turn.steal_share)
