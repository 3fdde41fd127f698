"""When to ask the Hub again, and after which pause. Knows not what is asked."""

from collections.abc import Callable, Sequence
from threading import Event
from typing import TypeVar

from launcher.hub import Unreachable

PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds
AT_FIRST = 1  # so many of them for a Hub from which nothing was heard yet: somebody waits for the server to start
LONGEST = 60.0  # seconds, whatever the Hub asks for
Answer = TypeVar("Answer")


class Patience:
    """For one file or question. It ends after some failures in a row, or when all is to stop."""

    def __init__(self, stopped: Event, tell: Callable[[str], None], pauses: Sequence[float]) -> None:
        self._stopped, self._tell, self._pauses = stopped, tell, pauses
        self._num_failures = 0
        self._heard = False

    def renew(self) -> None:
        """Something came."""
        self._heard, self._num_failures = True, 0

    def wait(self, error: Unreachable) -> None:
        """Until it makes sense to ask again; raises the error when it does not any more."""
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
