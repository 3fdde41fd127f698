"""Output of the launcher on stderr: plain lines, or one JSON object per line for programs. Tables and sizes as text."""

import logging
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Protocol

from shard.telemetry.logs import JsonLogFormatter

LOGGER_NAME = "launcher"
BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


class TextStream(Protocol):
    """Text stream that can be written to."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...
    def isatty(self) -> bool: ...


def write_if_possible(stream: TextStream, text: str) -> None:
    """Write to a stream. A full disk, or a reader that is gone, must not end a server: the text may be lost."""
    with suppress(OSError):
        stream.write(text)
        stream.flush()


class ConsoleOutput:
    """Writer of the launcher's log lines and banner, as plain text or as JSON."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._format_record = JsonLogFormatter(LOGGER_NAME).format

    def log(self, text: str, level: int = logging.INFO) -> None:
        write_if_possible(sys.stderr, f"{self._format_json(text, level) if self._as_json else f'weft: {text}'}\n")

    def warn(self, text: str) -> None:
        self.log(text, logging.WARNING)

    def print_banner(self, banner: str) -> None:
        """Print the banner on stdout, for users at a terminal and for programs that wait for it; log it as JSON."""
        if self._as_json:
            self.log(banner)
        else:
            write_if_possible(sys.stdout, f"{banner}\n")

    def make_progress_stream(self) -> TextStream:
        """Return a stream for output that is formatted elsewhere, such as progress lines."""
        return LineLoggingStream(self.log) if self._as_json else sys.stderr

    def _format_json(self, text: str, level: int) -> str:
        return self._format_record(logging.LogRecord(LOGGER_NAME, level, "", 0, text, None, None))


class LineLoggingStream:
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


PLAIN_OUTPUT = ConsoleOutput()


def align_columns(rows: Sequence[Sequence[str]], left_columns: Collection[int] = (0,)) -> str:
    """Return a text table; the columns with these numbers are aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) if number in left_columns else cell.rjust(width)
                               for number, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
                     for row in rows)


def format_bytes(num_bytes: float) -> str:
    """Format a number of bytes: 512 B, 1.3 GB."""
    for unit, name in BYTE_UNITS:
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return f"{num_bytes:.0f} B"
