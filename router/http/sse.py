"""Server-sent events: one open response that takes rendered events, and keeps quiet connections alive.

Knows nothing of what the events say.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

from aiohttp import HttpVersion11, web

from router.stream import Event, Stream

HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
# Seconds without an event after which a comment tells client and proxies that the connection lives.
SILENCE = 15.0


@asynccontextmanager
async def event_stream(request: web.Request, headers: Mapping[str, str], patience: float,
                       silence: float = SILENCE) -> AsyncIterator["EventStream"]:
    """A response that begins here and ends with the block, unless the connection ended before. A client that does not
    read for `patience` seconds is cut off."""
    response = web.StreamResponse(headers={**HEADERS, **headers})
    if request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    else:
        response.force_close()  # where the body ends
    await response.prepare(request)
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client left")
    out = EventStream(request, response, transport, patience, silence)
    try:
        yield out
    finally:
        out.stop_comments()
    if not transport.is_closing():
        await out.wait_for_reader(response.write_eof())


class EventStream:
    """The body of a response while it is written.

    aiohttp writes the head and the end. What is between goes to the transport directly, framed as chunks here: to pass
    it through `StreamResponse.write` would cost as much again as to render it.
    """

    def __init__(self, request: web.Request, response: web.StreamResponse, transport: asyncio.Transport,
                 patience: float, silence: float) -> None:
        self.response = response
        self.failure: Exception | None = None  # what it ended with, where the client was told so
        self._protocol = request.protocol
        self._writer = request.writer
        self._transport = transport
        self._chunked = response.chunked
        self._patience = patience
        self._silence = silence
        self._loop = asyncio.get_running_loop()
        self._spoke = self._loop.time()
        self._timer = self._loop.call_at(self._spoke + silence, self._break_silence)

    @property
    def paused(self) -> bool:
        """Whether the client does not read what is written."""
        return self._protocol.writing_paused

    def write(self, data: bytes) -> None:
        """Raises ConnectionError when the client is gone. An empty chunk would be the end."""
        assert data
        if self._transport.is_closing():
            raise ConnectionResetError("the client left")
        self._spoke = self._loop.time()
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    async def drain(self) -> None:
        """Wait until the client reads again."""
        await self.wait_for_reader(self._writer.drain())

    async def wait_for_reader(self, writing: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await writing
        except TimeoutError:
            self.cut()
            raise ConnectionResetError(f"the client did not read for {self._patience} seconds") from None

    def cut(self) -> None:
        """End the connection at once, without the end of the body: the client sees that something is missing."""
        self._transport.abort()

    def stop_comments(self) -> None:
        self._timer.cancel()

    def _break_silence(self) -> None:
        if self._transport.is_closing():
            return
        now = self._loop.time()
        if now >= self._spoke + self._silence:
            self._spoke = now
            if not self.paused:
                self.write(b":\n\n")
        self._timer = self._loop.call_at(self._spoke + self._silence, self._break_silence)


class Rendering(Protocol):
    """Makes bytes of events; `ended` when the last one was among them."""

    ended: bool

    def burst(self, events: list[Event]) -> bytes: ...


class Pump:
    """Carries the events of a stream to the wire as they come.

    Bursts are written from a callback: to wake a task for each of them would cost as much again as to render it. The
    task that runs the pump is needed at the end, for errors, and when the client does not read.
    """

    def __init__(self, stream: Stream, rendering: Rendering, out: EventStream, outbox: "Outbox") -> None:
        self._stream = stream
        self._rendering = rendering
        self._out = out
        self._outbox = outbox
        self._needed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Until the last event is written. Raises what rendering and writing raise."""
        self._stream.listen(partial(self._outbox.add, self))
        while not self._rendering.ended:
            self.write(self.render())
            await self._needed
            await self._out.drain()
            self._needed = asyncio.get_running_loop().create_future()
        self._out.failure = self._stream.failure

    def render(self) -> bytes:
        """What waits, as far as it can be written: the rest stays in the mailbox, where it is counted."""
        if self._needed.done():
            return b""
        try:
            return self._rendering.burst(self._stream.take())
        except Exception as error:
            self._needed.set_exception(error)
            return b""

    def write(self, data: bytes) -> None:
        try:
            if data:
                self._out.write(data)
        except Exception as error:
            self._needed.set_exception(error)
        else:
            if not self._needed.done() and (self._rendering.ended or self._out.paused):
                self._needed.set_result(None)


class Outbox:
    """The pumps with something to write in this turn of the loop. All are rendered, then all are written: either work
    goes faster when the other does not come between, since a write leads through the whole of the system's network."""

    def __init__(self) -> None:
        self._due: list[Pump] = []

    def add(self, pump: Pump) -> None:
        if not self._due:
            asyncio.get_running_loop().call_soon(self._flush)
        self._due.append(pump)

    def _flush(self) -> None:
        due, self._due = self._due, []
        bursts = [pump.render() for pump in due]
        for pump, data in zip(due, bursts, strict=True):
            pump.write(data)
