"""Server-sent events: writing rendered events to an open response, and comments that keep idle connections alive.
`open_response_stream` opens the response, and an `EventPump` for each of its requests writes what the dialect's
renderer makes of the events."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

from aiohttp import HttpVersion11, web

from router.engine.output_stream import RequestStream, StreamEvent
from router.errors import Cancelled
from router.http.transport.request_context_and_middleware import FAILURE_TYPE

EVENT_STREAM_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
# Seconds without an event after which a comment is sent, so that client and proxies keep the connection.
KEEPALIVE_SECONDS = 15.0
# How long writing pauses after a flush, as a multiple of the seconds that it took, and at most.
PAUSE_PER_FLUSH_SECOND = 3.0
MAX_FLUSH_PAUSE_SECONDS = 0.02


@asynccontextmanager
async def open_response_stream(request: web.Request, headers: Mapping[str, str], slow_client_timeout: float,
                               render_error: Callable[[Exception], str],
                               keepalive_seconds: float | None = KEEPALIVE_SECONDS) -> AsyncIterator["EventStream"]:
    """Open a response that ends with the block, unless the connection is closed earlier. A client that does not read
    for `slow_client_timeout` seconds is disconnected. None for `keepalive_seconds`: send no comments.

    An exception of the block becomes the last event, rendered by `render_error`; Cancelled and ConnectionError abort
    the connection.
    """
    response = web.StreamResponse(headers={**EVENT_STREAM_HEADERS, **headers})
    if request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    else:
        response.force_close()  # without chunks, only the end of the connection marks the end of the body
    await response.prepare(request)
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client left")
    stream = EventStream(request, response, transport, slow_client_timeout, keepalive_seconds)
    try:
        yield stream
        if stream.failure is not None:
            request[FAILURE_TYPE] = type(stream.failure)
    except (Cancelled, ConnectionError) as error:
        request[FAILURE_TYPE] = type(error)
        stream.abort_connection()
    except Exception as error:
        request[FAILURE_TYPE] = type(error)
        stream.write(render_error(error).encode())
    finally:
        stream.stop_keepalive()
    if not transport.is_closing():
        await stream.wait_for_slow_client(response.write_eof())


class EventStream:
    """Response with server-sent events while it is written, with keepalive comments and a time limit for slow clients.

    aiohttp writes the headers and the end. Events go to the transport directly, framed as chunks here: passing them
    through `StreamResponse.write` would cost as much again as rendering them.
    """

    def __init__(self, request: web.Request, response: web.StreamResponse, transport: asyncio.Transport,
                 slow_client_timeout: float, keepalive_seconds: float | None) -> None:
        self.response = response
        self.failure: Exception | None = None  # the error that ended the stream, if it was sent as an event
        self._protocol = request.protocol
        self._writer = request.writer
        self._transport = transport
        self._is_chunked = response.chunked
        self._slow_client_timeout = slow_client_timeout
        self._loop = asyncio.get_running_loop()
        self._last_written_at = self._loop.time()
        self._keepalive_timer = None if keepalive_seconds is None else self._start_keepalive_timer(keepalive_seconds)

    @property
    def is_paused(self) -> bool:
        """Whether the client does not read what is written."""
        return self._protocol.writing_paused

    def write(self, data: bytes) -> None:
        """Write data; an empty chunk would end the body. Raises ConnectionError if the client is gone."""
        if not data:
            raise ValueError("an empty chunk ends the body")
        if self._transport.is_closing():
            raise ConnectionResetError("the client left")
        self._last_written_at = self._loop.time()
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    async def drain(self) -> None:
        """Wait until the client reads again."""
        await self.wait_for_slow_client(self._writer.drain())

    async def wait_for_slow_client(self, write_operation: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._slow_client_timeout):
                await write_operation
        except TimeoutError:
            self.abort_connection()
            raise ConnectionResetError(f"the client did not read for {self._slow_client_timeout} seconds") from None

    def abort_connection(self) -> None:
        """Abort the connection without the end of the body, so that the client sees that something is missing."""
        self._transport.abort()

    def stop_keepalive(self) -> None:
        if self._keepalive_timer is not None:
            self._keepalive_timer.cancel()

    def _start_keepalive_timer(self, seconds: float) -> asyncio.TimerHandle:
        return self._loop.call_at(self._last_written_at + seconds, self._send_keepalive_if_idle, seconds)

    def _send_keepalive_if_idle(self, seconds: float) -> None:
        if self._transport.is_closing():
            return
        now = self._loop.time()
        if now >= self._last_written_at + seconds:
            self._last_written_at = now
            if not self.is_paused:
                self.write(b":\n\n")
        self._keepalive_timer = self._start_keepalive_timer(seconds)


class EventRenderer(Protocol):
    """Interface of a renderer of events. `is_finished` is true once the last event is rendered."""

    is_finished: bool

    def render(self, events: list[StreamEvent]) -> bytes: ...


class EventPump:
    """Writes the events of a stream to the connection as they arrive.

    Bursts are written from a callback: waking a task for each of them would cost as much again as rendering it. The
    task that runs the pump wakes only at the end, on errors, and when the client does not read.
    """

    def __init__(self, stream: RequestStream, renderer: EventRenderer, event_stream: EventStream,
                 pump_flusher: "PumpFlusher") -> None:
        self._stream = stream
        self._renderer = renderer
        self._event_stream = event_stream
        self._pump_flusher = pump_flusher
        self._wake_future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stream.abort_connection = event_stream.abort_connection

    async def run(self) -> None:
        """Run until the last event is written. Raises what rendering and writing raise."""
        if self._stream.resumed_text is not None:
            async with self._pump_flusher.resumption_lock:
                await asyncio.to_thread(self._skip_resumed_text)
        self._stream.on_event = partial(self._pump_flusher.add, self)
        while not self._renderer.is_finished:
            self.write(self.render_queued_events())
            await self._wake_future
            await self._event_stream.drain()
            self._wake_future = asyncio.get_running_loop().create_future()
        self._event_stream.failure = self._stream.failure

    def _skip_resumed_text(self) -> None:
        """Render the events that the client has from another stream, and drop what comes of them."""
        self._renderer.render([*self._stream.make_resumed_events()])

    def render_queued_events(self) -> bytes:
        """Render the waiting events. While writing is blocked they stay in the stream, which measures their size."""
        if self._wake_future.done():
            return b""
        try:
            return self._renderer.render(self._stream.take_events())
        except Exception as error:
            self._wake_future.set_exception(error)
            return b""

    def write(self, data: bytes) -> None:
        try:
            if data:
                self._event_stream.write(data)
        except Exception as error:
            self._wake_future.set_exception(error)
        else:
            if (self._renderer.is_finished or self._event_stream.is_paused) and not self._wake_future.done():
                self._wake_future.set_result(None)


class PumpFlusher:
    """Writes what the pumps have, in one callback of the event loop for all.

    All are rendered, then all are written: alternating is slower, since each write runs through the system's whole
    network stack. A write costs the same for one event or several, so writing is limited to a quarter of the loop's
    time: after a flush it pauses for three times as long. Where many streams get tokens faster than that, a write
    carries the tokens of several steps.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        # Streams that go on behind many tokens render these one after the other: others need the threads, too.
        self.resumption_lock = asyncio.Lock()
        self._clock = clock
        self._due_pumps: list[EventPump] = []
        self._next_flush_at = clock()

    def add(self, pump: EventPump) -> None:
        if not self._due_pumps:
            loop, pause = asyncio.get_running_loop(), self._next_flush_at - self._clock()
            if pause > 0:
                loop.call_later(pause, self._flush)
            else:
                loop.call_soon(self._flush)
        self._due_pumps.append(pump)

    def _flush(self) -> None:
        started_at = self._clock()
        pumps, self._due_pumps = self._due_pumps, []
        rendered = [*map(EventPump.render_queued_events, pumps)]
        for pump, data in zip(pumps, rendered, strict=True):
            pump.write(data)
        ended_at = self._clock()
        self._next_flush_at = ended_at + min(PAUSE_PER_FLUSH_SECOND * (ended_at - started_at), MAX_FLUSH_PAUSE_SECONDS)
