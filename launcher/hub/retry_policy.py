"""Retry policy of requests to the Hub."""

from collections.abc import Callable, Sequence
from threading import Event
from typing import TypeVar

from launcher.hub.client import Unreachable

PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds
AT_FIRST = 1  # maximum retries before the Hub's first response: the user waits for the server to start
LONGEST = 60.0  # maximum seconds of a pause that the Hub asks for
Answer = TypeVar("Answer")


class Patience:
    """Retries of one file or request, until there are too many failures in a row or `stopped` is set."""

    def __init__(self, stopped: Event, tell: Callable[[str], None], pauses: Sequence[float]) -> None:
        self._stopped, self._tell, self._pauses = stopped, tell, pauses
        self._num_failures = 0
        self._heard = False

    def renew(self) -> None:
        """Reset the number of failures, since data has arrived."""
        self._heard, self._num_failures = True, 0

    def wait(self, error: Unreachable) -> None:
        """Wait until the next retry. Raises the error if there is none."""
        self._heard |= error.heard
        pauses = self._pauses if self._heard else self._pauses[:AT_FIRST]
        if self._num_failures == len(pauses) or self._stopped.is_set():
            raise error
        seconds = max(pauses[self._num_failures], min(error.seconds, LONGEST))
        self._num_failures += 1
        self._tell(f"{error}; trying again in {seconds:.0f} s")
        self._stopped.wait(seconds)

    def ask(self, question: Callable[[], Answer]) -> Answer:
        while True:
            try:
                return question()
            except Unreachable as error:
                self.wait(error)
