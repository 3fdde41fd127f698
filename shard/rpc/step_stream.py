"""Stream of one `Steps` call: messages in, outcomes out in the same order."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

Taken = TypeVar("Taken")


class Context(Protocol):
    """The part of grpc.aio.ServicerContext that is used."""

    async def write(self, message: Any) -> None: ...


class Line(Generic[Taken]):
    def __init__(self, take: Callable[[Any], Taken], outcome: Callable[[Taken], Awaitable[Any]]) -> None:
        """Create the stream. `take` is called when a message arrives, `outcome` when its answer is due."""
        self._take = take
        self._outcome = outcome
        self._taken: asyncio.Queue[Taken | None] = asyncio.Queue()

    async def serve(self, messages: AsyncIterator[Any], context: Context) -> None:
        reading = asyncio.create_task(self._read(messages))
        try:
            while (taken := await self._taken.get()) is not None:
                await context.write(await self._outcome(taken))
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    async def _read(self, messages: AsyncIterator[Any]) -> None:
        try:
            async for message in messages:
                self._taken.put_nowait(self._take(message))
        finally:
            self.end()

    def end(self) -> None:
        """End the call once all messages received so far are answered."""
        self._taken.put_nowait(None)
