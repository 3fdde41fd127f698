"""How far a shard has come with its start, for whoever waits: a phase, and how much of it is done.

Phases are `load` (bytes of weights), `check` (the gate at start) and, told by the router, `warm-up`. Knows nothing of
who listens.
"""

import os
from collections.abc import Callable
from contextlib import suppress

Progress = Callable[[str, int, int], None]  # phase, done, total; a total of 0: nobody knows


def silent(phase: str, done: int, total: int) -> None:
    """Nobody listens."""


class Lines:
    """Lines `progress PHASE DONE TOTAL` on a descriptor, at most one for every percent."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._last = ("", 0)

    def __call__(self, phase: str, done: int, total: int) -> None:
        now = (phase, 100 * done // total if total else 0)
        if self._descriptor < 0 or now == self._last:
            return
        self._last = now
        with suppress(OSError):  # whoever listened is gone, and so shall we be soon
            os.write(self._descriptor, f"progress {phase} {done} {total}\n".encode())
