"""Progress of a shard's start: a small file that the router reads on request, and lines on the pipe to the launcher.

A shard that loads does not listen yet, so it cannot be queried.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

LOAD, CHECK, WARM_UP, READY = "load", "check", "warm-up", "ready"
SELDOM = 0.1  # seconds between two lines about the same phase

OnProgress = Callable[[str, int, int], object]  # phase, how much of it is done, of how much; 0 of 0: unknown


def untold(_phase: str, _done: int, _total: int) -> None:
    """Ignore the progress."""


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
        """Replace the file atomically: a reader sees the old or the new contents. Errors are ignored."""
        fresh = f"{self._path}.new"
        with suppress(OSError):
            with open(fresh, "w", encoding="utf-8") as file:
                json.dump(stage, file)
            os.replace(fresh, self._path)


class Lines:
    """Writer of lines `progress PHASE DONE TOTAL` to a descriptor, at most one for every percent, and only until it is
    closed behind the line `ready`."""

    def __init__(self, descriptor: int, also: OnProgress = untold) -> None:
        """Create the writer; `also` is called with every progress."""
        self._descriptor = descriptor
        self._also = also
        self._last = ("", 0)

    def __call__(self, phase: str, done: int, total: int) -> None:
        self._also(phase, done, total)
        now = (phase, 100 * done // total if total else 0)
        if self._descriptor < 0 or now == self._last:
            return
        self._last = now
        with suppress(OSError):  # the reader is gone, and this process ends soon
            os.write(self._descriptor, f"progress {phase} {done} {total}\n".encode())


@contextmanager
def telling(path: str) -> Iterator[OnProgress]:
    """Yield a callback that writes progress to the file, if there is a path. The file is removed at the end."""
    if not path:
        yield untold
        return
    try:
        yield Progress(path)
    finally:
        with suppress(OSError):
            os.unlink(path)
