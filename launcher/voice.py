"""How the launcher talks on stderr: lines for people, or a JSON object on each line for programs.

Knows not what it says.
"""

import logging
import sys
from collections.abc import Callable
from typing import Protocol

from shard.logs import JsonLines

NAME = "launcher"


class Out(Protocol):
    """A stream of text, as far as it is written to."""

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
        """Lines on stdout: who has the server run in a terminal reads them, and a program waits for them."""
        if self._as_json:
            self.say(banner)
        else:
            print(banner, flush=True)

    def screen(self) -> Out:
        """For what makes its lines itself."""
        return Lines(self.say) if self._as_json else sys.stderr

    def _object(self, text: str, level: int) -> str:
        return self._format(logging.LogRecord(NAME, level, "", 0, text, None, None))


class Lines:
    """Where whole lines are written, each is said."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say

    def write(self, text: str) -> None:
        for line in text.splitlines():
            self._say(line.removeprefix("weft: "))

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        """It is a program that reads."""
        return False


PLAIN = Voice()
