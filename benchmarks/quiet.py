"""Turns that count: those in which the processors were ours.

The host of a virtual machine may give them to others for seconds on end. Linux says how much of them (`/proc/stat`).
"""

import os
import time
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

TRIES = 20
MOST = 0.05  # of the processors, that a turn may lose and counts
STEAL = 8  # its place in the first line


@dataclass(frozen=True, slots=True)
class Turn(Generic[T]):
    heard: T
    stolen: float  # share of the processors' time


def stolen_seconds() -> float:
    """Of all processors together, since the machine started."""
    with open("/proc/stat", encoding="ascii") as file:
        return int(file.readline().split()[STEAL]) / os.sysconf("SC_CLK_TCK")


class Tries(Generic[T]):
    """Of one turn, until no more than `most` of the processors was stolen meanwhile, or until there were `count`."""

    def __init__(self, most: float, count: int = TRIES) -> None:
        self._most, self._count = most, count
        self._done: list[Turn[T]] = []

    def again(self) -> bool:
        """Whether it should be tried, from now on."""
        self._began, self._before = time.perf_counter(), stolen_seconds()
        return not self._done or (len(self._done) < self._count and self._done[-1].stolen > self._most)

    def ended(self, heard: T) -> None:
        took = (time.perf_counter() - self._began) * (os.cpu_count() or 1)
        self._done.append(Turn(heard, (stolen_seconds() - self._before) / took))

    @property
    def best(self) -> Turn[T]:
        """In which least was stolen."""
        return min(self._done, key=lambda turn: turn.stolen)
