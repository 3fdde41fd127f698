"""Retry policy of requests to the Hub."""

from collections.abc import Callable, Sequence
from threading import Event
from typing import TypeVar

from launcher.hub.client import ServerUnreachableError

RETRY_PAUSES_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds
# maximum retries before the Hub's first response: the user waits for the server to start
MAX_RETRIES_BEFORE_RESPONSE = 1
MAX_PAUSE_SECONDS = 60.0  # maximum seconds of a pause that the Hub asks for
Result = TypeVar("Result")


class RetryPolicy:
    """Decides how long to wait before each retry of a request, and gives up after too many failures in a row."""

    def __init__(self, stop_event: Event, report: Callable[[str], None], pauses: Sequence[float]) -> None:
        self._stop_event, self._report, self._pauses = stop_event, report, pauses
        self._num_failures = 0
        self._has_response = False

    def reset_failures(self) -> None:
        """Reset the number of failures, since data has arrived."""
        self._has_response, self._num_failures = True, 0

    def wait_before_retry(self, error: ServerUnreachableError) -> None:
        """Wait until the next retry. Raises the error if there is none."""
        self._has_response |= error.has_response
        pauses = self._pauses if self._has_response else self._pauses[:MAX_RETRIES_BEFORE_RESPONSE]
        if self._num_failures == len(pauses) or self._stop_event.is_set():
            raise error
        seconds = max(pauses[self._num_failures], min(error.retry_after_seconds, MAX_PAUSE_SECONDS))
        self._num_failures += 1
        self._report(f"{error}; trying again in {seconds:.0f} s")
        self._stop_event.wait(seconds)

    def call_with_retries(self, operation: Callable[[], Result]) -> Result:
        while True:
            try:
                return operation()
            except ServerUnreachableError as error:
                self.wait_before_retry(error)
