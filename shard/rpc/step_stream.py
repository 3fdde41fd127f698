"""Stream of one `Steps` call: messages in, outcomes out in the same order."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

Received = TypeVar("Received")


class WritableContext(Protocol):
    """The part of grpc.aio.ServicerContext that is used."""

    async def write(self, message: Any) -> None: ...


class StepStreamServer(Generic[Received]):
    """One open `Steps` call: answers messages in the order in which they arrived."""

    def __init__(self, receive: Callable[[Any], Received], await_outcome: Callable[[Received], Awaitable[Any]]) -> None:
        """Create the stream. `receive` is called when a message arrives, `await_outcome` when its answer is due."""
        self._receive = receive
        self._await_outcome = await_outcome
        self._received_messages: asyncio.Queue[Received | None] = asyncio.Queue()

    async def serve(self, messages: AsyncIterator[Any], context: WritableContext) -> None:
        reader = asyncio.create_task(self._read_messages(messages))
        try:
            while (received := await self._received_messages.get()) is not None:
                await context.write(await self._await_outcome(received))
        finally:
            reader.cancel()
            await asyncio.wait([reader])

    async def _read_messages(self, messages: AsyncIterator[Any]) -> None:
        try:
            async for message in messages:
                self._received_messages.put_nowait(self._receive(message))
        finally:
            self.end_call()

    def end_call(self) -> None:
        """End the call once all messages received so far are answered."""
        self._received_messages.put_nowait(None)
