"""Server-sent events: writing rendered events to an open response, and comments that keep idle connections alive."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

from aiohttp import HttpVersion11, web

from router.engine.stream import Event, Stream

HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
# Seconds without an event after which a comment is sent, so that client and proxies keep the connection.
SILENCE = 15.0


@asynccontextmanager
async def event_stream(request: web.Request, headers: Mapping[str, str], patience: float,
                       silence: float = SILENCE) -> AsyncIterator["EventStream"]:
    """Open a response that ends with the block, unless the connection is closed earlier. A client that does not read
    for `patience` seconds is disconnected."""
    response = web.StreamResponse(headers={**HEADERS, **headers})
    if request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    else:
        response.force_close()  # without chunks, only the end of the connection marks the end of the body
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
    """Body of a response while it is written.

    aiohttp writes the headers and the end. Events go to the transport directly, framed as chunks here: passing them
    through `StreamResponse.write` would cost as much again as rendering them.
    """

    def __init__(self, request: web.Request, response: web.StreamResponse, transport: asyncio.Transport,
                 patience: float, silence: float) -> None:
        self.response = response
        self.failure: Exception | None = None  # the error that ended the stream, if it was sent as an event
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
        """Write data; an empty chunk would end the body. Raises ConnectionError if the client is gone."""
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
        """Abort the connection without the end of the body, so that the client sees that something is missing."""
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
    """Interface of a renderer of events. `ended` is true once the last event is rendered."""

    ended: bool

    def burst(self, events: list[Event]) -> bytes: ...


class Pump:
    """Writes the events of a stream to the connection as they arrive.

    Bursts are written from a callback: waking a task for each of them would cost as much again as rendering it. The
    task that runs the pump wakes only at the end, on errors, and when the client does not read.
    """

    def __init__(self, stream: Stream, rendering: Rendering, out: EventStream, outbox: "Outbox") -> None:
        self._stream = stream
        self._rendering = rendering
        self._out = out
        self._outbox = outbox
        self._needed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Run until the last event is written. Raises what rendering and writing raise."""
        self._stream.listen(partial(self._outbox.add, self))
        while not self._rendering.ended:
            self.write(self.render())
            await self._needed
            await self._out.drain()
            self._needed = asyncio.get_running_loop().create_future()
        self._out.failure = self._stream.failure

    def render(self) -> bytes:
        """Render the waiting events. While writing is blocked they stay in the stream, which measures their size."""
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
    """Pumps with something to write in this iteration of the event loop.

    All are rendered, then all are written: alternating is slower, since each write runs through the system's whole
    network stack.
    """

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
