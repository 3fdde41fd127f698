"""An answer that comes later: what it tells of is under way, and whoever asked for it can go on meanwhile."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Later(Generic[Answer]):
    def __init__(self, wait: Callable[[], object], finish: Callable[[], Answer]) -> None:
        """`wait` returns when there is nothing to wait for; any thread may call it. `finish` is called once, in the
        thread that began it."""
        self.wait = wait
        self._finish = finish
        self.answer: Future[Answer] = Future()

    def finish(self) -> Answer:
        """The answer, or what kept it from coming; the same each time."""
        if not self.answer.done():
            try:
                answer = self._finish()
            except Exception as error:
                self.answer.set_exception(error)
            else:
                self.answer.set_result(answer)
        return self.answer.result()

    def settle(self) -> None:
        """Whatever comes of it."""
        with suppress(Exception):
            self.finish()
