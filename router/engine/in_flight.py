"""Plans in flight, the oldest first: sent to the shards and not yet answered."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from router.scheduler.plan import Plan


@dataclass(frozen=True, slots=True)
class Sent:
    plan: Plan
    answer: "asyncio.Future[Any]"
    at: float


class Awaited:
    """Queue of the plans in flight. `wake` is called when an answer or an error arrives."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._sent: deque[Sent] = deque()

    def __len__(self) -> int:
        return len(self._sent)

    def __iter__(self) -> Iterator[Sent]:
        return iter(self._sent)

    @property
    def seconds(self) -> float:
        """Predicted duration of all plans together."""
        return sum(sent.plan.seconds for sent in self._sent)

    @property
    def has_answer(self) -> bool:
        """Whether the oldest plan has its answer."""
        return bool(self._sent) and self._sent[0].answer.done()

    @property
    def oldest(self) -> Sent:
        return self._sent[0]

    @property
    def since(self) -> float:
        """Time at which the oldest plan was sent; infinity if there is none."""
        return self._sent[0].at if self._sent else inf

    def add(self, plan: Plan, answer: "asyncio.Future[Any]", at: float) -> None:
        answer.add_done_callback(self._answered)
        self._sent.append(Sent(plan, answer, at))

    def drop_oldest(self) -> None:
        """Remove the oldest plan, which was answered."""
        self._sent.popleft()

    async def settle(self) -> None:
        """Wait for all answers, then drop the plans: no message of the next epoch may overtake one of this epoch."""
        if self._sent:
            await asyncio.wait([sent.answer for sent in self._sent])
        self.forget()

    def forget(self) -> None:
        """Drop all plans without waiting for their answers."""
        for sent in self._sent:
            sent.answer.remove_done_callback(self._answered)
            sent.answer.add_done_callback(_ignore)
            sent.answer.cancel()
        self._sent.clear()

    def _answered(self, _: object) -> None:
        self._wake()


def _ignore(answer: "asyncio.Future[Any]") -> None:
    """Retrieve the error of a dropped answer, so that asyncio does not report it as never retrieved."""
    if not answer.cancelled():
        answer.exception()
