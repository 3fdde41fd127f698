"""Output of the launcher on stderr: plain lines, or one JSON object per line for programs."""

import logging
import sys
from collections.abc import Callable
from typing import Protocol

from shard.telemetry.logs import JsonLogFormatter

LOGGER_NAME = "launcher"


class TextStream(Protocol):
    """Text stream that can be written to."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...
    def isatty(self) -> bool: ...


class Output:
    """Writer of the launcher's log lines and banner, as plain text or as JSON."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._format_record = JsonLogFormatter(LOGGER_NAME).format

    def log(self, text: str, level: int = logging.INFO) -> None:
        sys.stderr.write(f"{self._format_json(text, level) if self._as_json else f'weft: {text}'}\n")
        sys.stderr.flush()

    def warn(self, text: str) -> None:
        self.log(text, logging.WARNING)

    def print_banner(self, banner: str) -> None:
        """Print the banner on stdout, for users at a terminal and for programs that wait for it; log it as JSON."""
        if self._as_json:
            self.log(banner)
        else:
            print(banner, flush=True)

    def make_progress_stream(self) -> TextStream:
        """Return a stream for output that is formatted elsewhere, such as progress lines."""
        return LogStream(self.log) if self._as_json else sys.stderr

    def _format_json(self, text: str, level: int) -> str:
        return self._format_record(logging.LogRecord(LOGGER_NAME, level, "", 0, text, None, None))


class LogStream:
    """Stream that logs each line written to it."""

    def __init__(self, log_line: Callable[[str], object]) -> None:
        self._log_line = log_line

    def write(self, text: str) -> None:
        for line in text.splitlines():
            self._log_line(line.removeprefix("weft: "))

    def flush(self) -> None:
        """Do nothing: lines are not buffered."""

    def isatty(self) -> bool:
        """Return False: a program reads the output."""
        return False


PLAIN_OUTPUT = Output()
