"""Output of a download's progress: one line that is redrawn on a terminal, a line every few seconds elsewhere."""

import shutil
from collections.abc import Callable
from threading import Lock

from launcher.hub.progress_bar import Meter
from launcher.output import Out

BETWEEN_LINES = 10.0  # seconds
CLEAR = "\r\x1b[K"


class Screen:
    """Thread-safe output of messages and progress. `quiet` hides the progress, not the messages.

    A message equal to the last one is dropped, since several threads may report the same.
    """

    def __init__(self, target: Out, clock: Callable[[], float], *, quiet: bool) -> None:
        self._target, self._clock, self._quiet = target, clock, quiet
        self._redraws = target.isatty()
        self._drawn = False  # whether the last output was a bar
        self._last = clock()
        self._last_said = ""
        self._alone = Lock()

    def say(self, text: str) -> None:
        with self._alone:
            if text != self._last_said:
                self._clear()
                self._write(f"weft: {text}\n")
                self._last_said = text

    def begin(self, meter: Meter) -> None:
        """Print a line that names the download, since a bar shows figures only."""
        if not self._quiet:
            self.say(meter.line(self._clock()))

    def show(self, meter: Meter) -> None:
        if self._quiet:
            return
        with self._alone:
            now = self._clock()
            if self._redraws:
                self._write(CLEAR + meter.bar(now, shutil.get_terminal_size().columns - 1))
                self._drawn = True
            elif now - self._last >= BETWEEN_LINES:
                self._last = now
                self._write(f"weft: {meter.line(now)}\n")

    def clear(self) -> None:
        with self._alone:
            self._clear()

    def _clear(self) -> None:
        if self._drawn:
            self._write(CLEAR)
            self._drawn = False

    def _write(self, text: str) -> None:
        self._target.write(text)
        self._target.flush()
