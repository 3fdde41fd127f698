"""Pooling requests (embedding, classification): run many texts with bounded concurrency, build results and headers.

All texts of a request are validated before the first is run, and at most `most_at_once` are submitted at a time.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from time import monotonic as clock
from typing import Generic, TypeVar

from aiohttp import web

from router.config import RouterConfig
from router.engine.stream import Stream
from router.errors import Overloaded
from router.http.lorax.rendering import KIND
from router.http.transport.collect import Said, said
from router.http.transport.generate import House, together
from router.http.transport.headers import Caller, compute, identity, milliseconds, timings
from router.validation.validator import Choice, Wanted, time_left

MOST_AT_ONCE = 32

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Read(Generic[T]):
    """Results of the texts, in their order; their total number of tokens; the response headers."""

    made: list[T]
    num_tokens: int
    headers: dict[str, str]


async def read(house: House, request: web.Request, caller: Caller, wanted: Iterable[Wanted],
               make: Callable[[int, Said], T]) -> Read[T]:
    """Run each text as a request of its own; `make` builds a result from its index and output. If one fails or the
    client disconnects, all are cancelled."""
    choices = await checked(house, wanted)
    validated = clock()
    shift = Shift(house, caller, choices, make)
    made = await shift.work()
    total = clock() - caller.came
    headers = (compute(house.engine.facts, sum(choice.num_characters for choice in choices)) | identity(request)
               | timings(shift.over, validated - caller.came, total))
    if house.is_lorax:
        headers |= {"x-compute-type": KIND, "x-compute-time": milliseconds(total)}
    return Read(made, sum(len(choice.request.prompt) for choice in choices), headers)


async def checked(house: House, wanted: Iterable[Wanted]) -> list[Choice]:
    """Validate all texts. Short ones are tokenised on the event loop, so other tasks may run after each."""
    choices: list[Choice] = []
    for each in wanted:
        if choices:
            await asyncio.sleep(0)
        choices += await house.validator.choices(each)
    return choices


def most_at_once(config: RouterConfig) -> int:
    """Return how many texts of one request may run at once: a quarter of --max-concurrent-requests, or
    --max-client-batch-size if that is more, but at most MOST_AT_ONCE."""
    return min(MOST_AT_ONCE, max(config.max_client_batch_size, config.max_concurrent_requests // 4))


class Shift(Generic[T]):
    """Pool of workers that drain one list of texts."""

    def __init__(self, house: House, caller: Caller, choices: Sequence[Choice],
                 make: Callable[[int, Said], T]) -> None:
        """`make` is called as soon as the output of a text arrives, and the output is then dropped: a vector takes much
        more memory than its JSON."""
        self.over: list[Said] = []  # finished texts, without their outputs
        self._house = house
        self._caller = caller
        self._make = make
        self._made: dict[int, T] = {}
        self._left = deque(enumerate(choices))
        self._num_under_way = 0

    async def work(self) -> list[T]:
        num_texts = len(self._left)
        await together(self._take_turns() for _ in range(min(num_texts, most_at_once(self._house.config))))
        return [self._made[index] for index in range(num_texts)]

    async def _take_turns(self) -> None:
        """Run texts until none is left. On Overloaded put the text back and end, leaving it to the other workers; raise
        if none of them has a text under way."""
        while self._left:
            index, choice = self._left.popleft()
            try:
                stream = self._submit(choice)
            except Overloaded:
                if not self._num_under_way:
                    raise
                self._left.appendleft((index, choice))
                return
            told = await self._hear(stream, choice)
            self._made[index] = self._make(index, told)
            self.over.append(replace(told, end=replace(told.end, told=[])))

    def _submit(self, choice: Choice) -> Stream:
        """Submit a text with the time left until the deadline, after earlier texts used a part of it."""
        if self._caller.deadline is not None:
            choice = replace(choice, request=replace(choice.request, timeout=time_left(self._caller.deadline)))
        return self._house.submit(choice, self._caller)

    async def _hear(self, stream: Stream, choice: Choice) -> Said:
        self._num_under_way += 1
        try:
            with closing(stream):
                return await said(stream, choice)
        finally:
            self._num_under_way -= 1
