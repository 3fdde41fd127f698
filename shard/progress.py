"""How far a shard's start has come, for whoever waits: in a small file that a router reads when somebody asks it, and
as lines on the pipe to the launcher.

A shard that loads does not listen yet, so nobody could ask the shard. Knows nothing of what a phase consists of.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

LOAD, CHECK, WARM_UP, READY = "load", "check", "warm-up", "ready"
SELDOM = 0.1  # seconds between two lines about the same phase

OnProgress = Callable[[str, int, int], object]  # phase, how much of it is done, of how much; 0 of 0: nobody knows


def untold(_phase: str, _done: int, _total: int) -> None:
    """Nobody wants to know."""


class Progress:
    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._phase = ""
        self._began = self._written = 0.0

    def __call__(self, phase: str, done: int, total: int) -> None:
        now = self._clock()
        if phase == self._phase and now - self._written < SELDOM and done != total:
            return
        if phase != self._phase:
            self._phase, self._began = phase, now
        self._written = now
        self._write({"phase": phase, "done": done, "total": total, "seconds": now - self._began})

    def _write(self, stage: dict[str, object]) -> None:
        """Whoever reads sees the line before or this one. That it cannot be told is no reason not to serve."""
        fresh = f"{self._path}.new"
        with suppress(OSError):
            with open(fresh, "w", encoding="utf-8") as file:
                json.dump(stage, file)
            os.replace(fresh, self._path)


class Lines:
    """Lines `progress PHASE DONE TOTAL` on a descriptor, at most one for every percent. For as long as it is open: the
    line `ready` closes it."""

    def __init__(self, descriptor: int, also: OnProgress = untold) -> None:
        """`also` hears everything."""
        self._descriptor = descriptor
        self._also = also
        self._last = ("", 0)

    def __call__(self, phase: str, done: int, total: int) -> None:
        self._also(phase, done, total)
        now = (phase, 100 * done // total if total else 0)
        if self._descriptor < 0 or now == self._last:
            return
        self._last = now
        with suppress(OSError):  # whoever listened is gone, and so shall we be soon
            os.write(self._descriptor, f"progress {phase} {done} {total}\n".encode())


@contextmanager
def telling(path: str) -> Iterator[OnProgress]:
    """The file goes with the shard."""
    if not path:
        yield untold
        return
    try:
        yield Progress(path)
    finally:
        with suppress(OSError):
            os.unlink(path)
