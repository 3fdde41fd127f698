"""Pending answer of a computation under way: the caller can do other work meanwhile."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class PendingResult(Generic[Answer]):
    """Result of a computation under way. `wait` returns when it is over; any thread may call it. `finish` may be called
    often, always in the thread that began the computation; the function that it was given runs once."""

    def __init__(self, wait: Callable[[], object], finish: Callable[[], Answer]) -> None:
        self.wait = wait
        self._finish = finish
        self.future: Future[Answer] = Future()

    def finish(self) -> Answer:
        """Return the answer, or raise the error of the computation; the same each time."""
        if not self.future.done():
            try:
                answer = self._finish()
            except Exception as error:
                self.future.set_exception(error)
            else:
                self.future.set_result(answer)
            del self._finish  # it may refer to this object: without it there is no cycle to collect
        return self.future.result()

    def finish_without_raising(self) -> None:
        """Finish without raising; `future` has the result or the error."""
        with suppress(Exception):
            self.finish()
