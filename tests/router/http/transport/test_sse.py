"""One event stream: bytes on the connection, backpressure and disconnects."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from router.engine.stream import FailedEvent, Stream, TokenEvent
from router.errors import GenerationFailed
from router.http.transport.collect import Streaming
from router.http.transport.sse import Outbox, Pump, event_stream
from router.request import Request
from router.validation.validator import Choice


def respond(handler, scenario):
    """Run a scenario with a connection to a server that has this one handler."""
    async def main():
        app = web.Application()
        app.router.add_post("/", handler)
        async with TestServer(app, handler_cancellation=True) as server:
            reader, writer = await asyncio.open_connection(server.host, server.port)
            try:
                return await scenario(reader, writer)
            finally:
                writer.transport.abort()
    return asyncio.run(main())


def asking(version, *headers):
    async def scenario(reader, writer):
        writer.write("\r\n".join([f"POST / HTTP/{version}", "Host: x", *headers, "", ""]).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        return head.decode().lower(), await reader.readuntil(b"!")
    return scenario


async def two_bursts(request):
    async with event_stream(request, {"x-more": "1"}, 30.0) as out:
        out.write(b"data: a\n\n")
        out.write(b"data: b\n\n")
    request.transport.write(b"!")
    return out.response


def test_the_head_tells_what_follows():
    head, _ = respond(two_bursts, asking("1.1"))
    for line in ("content-type: text/event-stream", "cache-control: no-cache", "x-accel-buffering: no", "x-more: 1",
                 "transfer-encoding: chunked"):
        assert f"{line}\r\n" in head


def test_every_burst_is_one_chunk():
    _, body = respond(two_bursts, asking("1.1"))
    assert body == b"9\r\ndata: a\n\n\r\n9\r\ndata: b\n\n\r\n0\r\n\r\n!"


@pytest.mark.parametrize("headers", [(), ("Connection: keep-alive",)])
def test_old_clients_read_until_the_connection_ends(headers):
    async def scenario(reader, writer):
        await asking("1.0", *headers)(reader, writer)
        return await reader.read()
    assert respond(two_bursts, scenario) == b""
    _, body = respond(two_bursts, asking("1.0", *headers))
    assert body == b"data: a\n\ndata: b\n\n!"


def test_a_connection_serves_one_stream_after_the_other():
    async def scenario(reader, writer):
        return [await asking("1.1")(reader, writer) for _ in range(2)]
    first, second = respond(two_bursts, scenario)
    assert first[1] == second[1]


def test_silence_is_broken_by_comments():
    async def handler(request):
        async with event_stream(request, {}, 30.0, silence=0.01):
            await asyncio.Event().wait()
    async def scenario(reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        return await reader.readexactly(16)
    assert respond(handler, scenario) == b"3\r\n:\n\n\r\n" * 2


def test_a_client_that_does_not_read_is_waited_for_until_it_is_cut():
    stuck = asyncio.Queue()
    async def handler(request):
        async with event_stream(request, {}, 30.0) as out:
            while not request.protocol.writing_paused:
                out.write(b"x" * 2**20)
                await asyncio.sleep(0)
            stuck.put_nowait((out, asyncio.ensure_future(out.drain())))
            await asyncio.Event().wait()
    async def scenario(reader, writer):
        writer.transport.pause_reading()
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
        out, draining = await stuck.get()
        assert out.paused
        assert not draining.done()
        out.cut()
        await asyncio.wait([draining])
    respond(handler, scenario)


def test_writing_to_a_client_that_left_is_an_error():
    ends = asyncio.Queue()
    async def handler(request):
        async with event_stream(request, {}, 30.0) as out:
            out.cut()
            try:
                out.write(b"x")
            except ConnectionError as error:
                ends.put_nowait(error)
        return out.response
    async def scenario(reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert isinstance(await ends.get(), ConnectionResetError)
    respond(handler, scenario)


# ---------------------------------------------------------------------------------------------------------------------
# The pump


class Wire:
    """Double of an event stream; while `paused`, its client reads once `reads` is set."""

    def __init__(self):
        self.paused = False
        self.failure = None
        self.written = []
        self.reads = asyncio.Event()

    def write(self, data):
        self.written.append(data)

    async def drain(self):
        if self.paused:
            await self.reads.wait()


class Letters:
    """Renderer of texts as their bytes: a full stop ends the stream, an exclamation mark raises ValueError."""

    ended = False

    def burst(self, events):
        text = "".join(event.text for event in events)
        if "!" in text:
            raise ValueError(text)
        self.ended = "." in text
        return text.encode()


def pump(scenario):
    async def main():
        stream = Stream(Request("0", (1,), 1), 10**6, pytest.fail, pytest.fail, lambda: None)
        wire = Wire()
        pumping = asyncio.create_task(Pump(stream, Letters(), wire, Outbox()).run())
        async def say(*texts):
            for text in texts:
                stream.put(TokenEvent(0, text, 0.0, False))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await scenario(say, wire, pumping)
        assert pumping.done()
    asyncio.run(main())


def test_a_burst_is_written_at_once():
    async def scenario(say, wire, pumping):
        await say("a", "b")
        await say("c")
        assert wire.written == [b"ab", b"c"]
        await say(".")
        await pumping
    pump(scenario)


def test_events_wait_in_the_mailbox_while_the_client_does_not_read():
    async def scenario(say, wire, pumping):
        wire.paused = True
        for text in "abc":
            await say(text)
        assert wire.written == [b"a"]
        wire.paused = False
        wire.reads.set()
        await say("d")
        assert b"".join(wire.written) == b"abcd"
        await say(".")
        await pumping
    pump(scenario)


def test_what_rendering_raises_ends_the_pump():
    async def scenario(say, wire, pumping):
        await say("a")
        await say("!", ".")
        with pytest.raises(ValueError, match="!"):
            await pumping
        await say("more")
        assert wire.written == [b"a"]
    pump(scenario)


def test_the_wire_knows_what_the_client_was_told_last():
    async def main():
        stream = Stream(Request("0", (1,), 1), 10**6, pytest.fail, pytest.fail, lambda: None)
        wire, failure = Wire(), GenerationFailed("broken")
        stream.put(TokenEvent(0, "a", 0.0, False))
        stream.put(FailedEvent(failure))
        await Pump(stream, Streaming(Choice(stream.request, None), False, ""), wire, Outbox()).run()
        assert wire.failure is failure
    asyncio.run(main())


def test_a_pump_that_was_cancelled_writes_no_more():
    async def scenario(say, wire, pumping):
        await say()
        pumping.cancel()
        await say("a")
        assert pumping.cancelled()
        assert wire.written == []
    pump(scenario)
