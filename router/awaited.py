"""The plans that were sent and whose answers are awaited, the oldest first. Knows nothing of what answers say."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from router.messages import Plan


@dataclass(frozen=True, slots=True)
class Sent:
    plan: Plan
    answer: "asyncio.Future[Any]"
    at: float


class Awaited:
    """`wake` is called when an answer, or an error in its place, is there."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._sent: deque[Sent] = deque()

    def __len__(self) -> int:
        return len(self._sent)

    def __iter__(self) -> Iterator[Sent]:
        return iter(self._sent)

    @property
    def seconds(self) -> float:
        """What all of them should take."""
        return sum(sent.plan.seconds for sent in self._sent)

    @property
    def has_answer(self) -> bool:
        """Whether the oldest need not be waited for."""
        return bool(self._sent) and self._sent[0].answer.done()

    @property
    def oldest(self) -> Sent:
        return self._sent[0]

    @property
    def since(self) -> float:
        """When the oldest was sent; never, if there is none."""
        return self._sent[0].at if self._sent else inf

    def add(self, plan: Plan, answer: "asyncio.Future[Any]", at: float) -> None:
        answer.add_done_callback(self._answered)
        self._sent.append(Sent(plan, answer, at))

    def drop_oldest(self) -> None:
        """It was answered."""
        self._sent.popleft()

    async def settle(self) -> None:
        """Wait until everything has come back, and forget it: what belongs to an epoch that is over must not be
        overtaken by the next one."""
        if self._sent:
            await asyncio.wait([sent.answer for sent in self._sent])
        self.forget()

    def forget(self) -> None:
        """Nobody waits any more."""
        for sent in self._sent:
            sent.answer.remove_done_callback(self._answered)
            sent.answer.add_done_callback(_ignore)
            sent.answer.cancel()
        self._sent.clear()

    def _answered(self, _: object) -> None:
        self._wake()


def _ignore(answer: "asyncio.Future[Any]") -> None:
    """Fetch the error of an answer that nobody waits for any more, so that it is not reported as lost."""
    if not answer.cancelled():
        answer.exception()
