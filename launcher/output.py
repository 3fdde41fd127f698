"""Output of the launcher on stderr: plain lines, or one JSON object per line for programs."""

import logging
import sys
from collections.abc import Callable
from typing import Protocol

from shard.telemetry.logs import JsonLines

NAME = "launcher"


class Out(Protocol):
    """Text stream that can be written to."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...
    def isatty(self) -> bool: ...


class Voice:
    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._format = JsonLines(NAME).format

    def say(self, text: str, level: int = logging.INFO) -> None:
        sys.stderr.write(f"{self._object(text, level) if self._as_json else f'weft: {text}'}\n")
        sys.stderr.flush()

    def warn(self, text: str) -> None:
        self.say(text, logging.WARNING)

    def greet(self, banner: str) -> None:
        """Print the banner on stdout, for users at a terminal and for programs that wait for it; log it as JSON."""
        if self._as_json:
            self.say(banner)
        else:
            print(banner, flush=True)

    def screen(self) -> Out:
        """Return a stream for output that is formatted elsewhere, such as progress lines."""
        return Lines(self.say) if self._as_json else sys.stderr

    def _object(self, text: str, level: int) -> str:
        return self._format(logging.LogRecord(NAME, level, "", 0, text, None, None))


class Lines:
    """Stream that passes each written line to `say`."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say

    def write(self, text: str) -> None:
        for line in text.splitlines():
            self._say(line.removeprefix("weft: "))

    def flush(self) -> None:
        """Do nothing: lines are not buffered."""

    def isatty(self) -> bool:
        """Return False: a program reads the output."""
        return False


PLAIN = Voice()
