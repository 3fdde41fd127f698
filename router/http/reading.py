"""Texts that are run as a whole: from what is wanted of each to what is made of what it is told, and a head for all.

All are checked before any of them is run, and only some of one request are in the house at once. Knows no route and no
JSON.
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
from router.errors import Overloaded
from router.http.dialect import House, together
from router.http.headers import Caller, compute, identity, milliseconds, timings
from router.http.lorax_rendering import KIND
from router.http.rendering import Said, said
from router.stream import Stream
from router.validation import Choice, Wanted, time_left

MOST_AT_ONCE = 32

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Read(Generic[T]):
    """What was made of each text, in their order; how many tokens they have; what is told in the head."""

    made: list[T]
    num_tokens: int
    headers: dict[str, str]


async def read(house: House, request: web.Request, caller: Caller, wanted: Iterable[Wanted],
               make: Callable[[int, Said], T]) -> Read[T]:
    """Each text is a request of its own, known to `make` by its place. When one fails or the client leaves, all are
    given up."""
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
    """Short texts are tokenised at once, so others have their turn after each."""
    choices: list[Choice] = []
    for each in wanted:
        if choices:
            await asyncio.sleep(0)
        choices += await house.validator.choices(each)
    return choices


def most_at_once(config: RouterConfig) -> int:
    """A quarter of the house, unless it is said that clients may ask for more."""
    return min(MOST_AT_ONCE, max(config.max_client_batch_size, config.max_concurrent_requests // 4))


class Shift(Generic[T]):
    """Hands who take one text after the other until none is left."""

    def __init__(self, house: House, caller: Caller, choices: Sequence[Choice],
                 make: Callable[[int, Said], T]) -> None:
        """`make` is called as soon as a text is told of, and what it was told is kept no longer: a vector takes much
        more room than what is written of it."""
        self.over: list[Said] = []  # without what they were told
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
        """Where there is no room for one more, those who have room go on without this hand."""
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
        """Those before it took some of its time."""
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
