"""Output of a download's progress: one line that is redrawn on a terminal, a line every few seconds elsewhere."""

import shutil
from collections.abc import Callable
from threading import Lock

from launcher.console_output import TextStream
from launcher.hub.progress_bar import DownloadProgress

LINE_INTERVAL_SECONDS = 10.0  # seconds
CLEAR_LINE = "\r\x1b[K"


class DownloadDisplay:
    """Thread-safe output of messages and progress. `hides_progress` hides the progress, not the messages.

    A message equal to the last one is dropped, since several threads may report the same.
    """

    def __init__(self, stream: TextStream, clock: Callable[[], float], *, hides_progress: bool) -> None:
        self._stream, self._clock, self._hides_progress = stream, clock, hides_progress
        self._is_terminal = stream.isatty()
        self._is_bar_drawn = False  # whether the last output was a bar
        self._last_line_at = clock()
        self._last_message = ""
        self._lock = Lock()

    def print_message(self, text: str) -> None:
        with self._lock:
            if text != self._last_message:
                self._clear_bar_locked()
                self._write(f"weft: {text}\n")
                self._last_message = text

    def print_start(self, progress: DownloadProgress) -> None:
        """Print a line that names the download, since a bar shows figures only."""
        if not self._hides_progress:
            self.print_message(progress.format_line(self._clock()))

    def show_progress(self, progress: DownloadProgress) -> None:
        if self._hides_progress:
            return
        with self._lock:
            now = self._clock()
            if self._is_terminal:
                self._write(CLEAR_LINE + progress.format_bar(now, shutil.get_terminal_size().columns - 1))
                self._is_bar_drawn = True
            elif now - self._last_line_at >= LINE_INTERVAL_SECONDS:
                self._last_line_at = now
                self._write(f"weft: {progress.format_line(now)}\n")

    def clear_bar(self) -> None:
        with self._lock:
            self._clear_bar_locked()

    def _clear_bar_locked(self) -> None:
        if self._is_bar_drawn:
            self._write(CLEAR_LINE)
            self._is_bar_drawn = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
