"""Progress of a shard's start: a small file that the router reads on request, and lines on the pipe to the launcher.

A shard that loads does not listen yet, so it cannot be queried.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

LOAD_PHASE, CHECK_PHASE, WARM_UP_PHASE, READY_PHASE = "load", "check", "warm-up", "ready"
MIN_WRITE_INTERVAL_SECONDS = 0.1  # seconds between two lines about the same phase

OnProgress = Callable[[str, int, int], object]  # phase, how much of it is done, of how much; 0 of 0: unknown


def ignore_progress(_phase: str, _done: int, _total: int) -> None:
    """Ignore the progress."""


class ProgressFile:
    """Writer of the file from which the router reads how far the start has come."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._phase = ""
        self._phase_started_at = self._written_at = 0.0

    def __call__(self, phase: str, done: int, total: int) -> None:
        now = self._clock()
        if phase == self._phase and now - self._written_at < MIN_WRITE_INTERVAL_SECONDS and done != total:
            return
        if phase != self._phase:
            self._phase, self._phase_started_at = phase, now
        self._written_at = now
        temporary_path = f"{self._path}.new"
        with suppress(OSError):  # the file is replaced atomically: a reader sees the old or the new contents
            with open(temporary_path, "w", encoding="utf-8") as file:
                json.dump({"phase": phase, "done": done, "total": total, "seconds": now - self._phase_started_at}, file)
            os.replace(temporary_path, self._path)


class ProgressPipe:
    """Writer of lines `progress PHASE DONE TOTAL` to a descriptor, at most one for every percent, and only until it is
    closed behind the line `ready`. It calls `on_progress` with every progress."""

    def __init__(self, descriptor: int, on_progress: OnProgress = ignore_progress) -> None:
        self._descriptor = descriptor
        self._on_progress = on_progress
        self._last_written = ("", 0)

    def __call__(self, phase: str, done: int, total: int) -> None:
        self._on_progress(phase, done, total)
        now = (phase, 100 * done // total if total else 0)
        if self._descriptor < 0 or now == self._last_written:
            return
        self._last_written = now
        with suppress(OSError):  # the reader is gone, and this process ends soon
            os.write(self._descriptor, f"progress {phase} {done} {total}\n".encode())


@contextmanager
def open_progress_file(path: str) -> Iterator[OnProgress]:
    """Yield a callback that writes progress to the file, if there is a path. The file is removed at the end."""
    if not path:
        yield ignore_progress
        return
    try:
        yield ProgressFile(path)
    finally:
        with suppress(OSError):
            os.unlink(path)
