"""Repetition of measurements that lost CPU time to other users of the host (steal time).

The host of a virtual machine may give its processors to others for seconds; Linux reports how much in `/proc/stat`.
"""

import os
import time
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

TRIES = 20
MOST = 0.05  # largest stolen share of the processors with which a turn counts
STEAL = 8  # index of the steal time in the first line of /proc/stat


@dataclass(frozen=True, slots=True)
class Turn(Generic[T]):
    heard: T
    stolen: float  # share of the processors' time


def stolen_seconds() -> float:
    """Return the steal time of all processors together since the machine started."""
    with open("/proc/stat", encoding="ascii") as file:
        return int(file.readline().split()[STEAL]) / os.sysconf("SC_CLK_TCK")


class Tries(Generic[T]):
    """Attempts at one turn, until at most `most` of the processors was stolen in one, or `count` were made."""

    def __init__(self, most: float, count: int = TRIES) -> None:
        self._most, self._count = most, count
        self._done: list[Turn[T]] = []

    def again(self) -> bool:
        """Return whether another attempt is needed, and start its clock."""
        self._began, self._before = time.perf_counter(), stolen_seconds()
        return not self._done or (len(self._done) < self._count and self._done[-1].stolen > self._most)

    def ended(self, heard: T) -> None:
        took = (time.perf_counter() - self._began) * (os.cpu_count() or 1)
        self._done.append(Turn(heard, (stolen_seconds() - self._before) / took))

    @property
    def best(self) -> Turn[T]:
        """The attempt with the least steal time."""
        return min(self._done, key=lambda turn: turn.stolen)
