"""One event stream: bytes on the connection, backpressure and disconnects."""

import asyncio

import pytest
from aiohttp import ClientPayloadError, web
from aiohttp.test_utils import TestClient, TestServer

from router.engine.output_stream import FailedEvent, RequestStream, TokenEvent
from router.errors import Cancelled, GenerationFailed
from router.http.tgi.rendering import GenerateStreamRenderer
from router.http.transport import sse
from router.http.transport.sse import EventPump, PumpFlusher, open_response_stream
from router.request import Request
from router.validation.validator import ValidatedRequest


def run_with_handler(handler, scenario):
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


def post_and_read(http_version, *headers):
    async def scenario(reader, writer):
        writer.write("\r\n".join([f"POST / HTTP/{http_version}", "Host: x", *headers, "", ""]).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        return head.decode().lower(), await reader.readuntil(b"!")
    return scenario


async def write_two_events(request):
    async with open_response_stream(request, {"x-more": "1"}, 30.0, str) as out:
        out.write(b"data: a\n\n")
        out.write(b"data: b\n\n")
    request.transport.write(b"!")
    return out.response


def test_event_stream_headers_are_sent():
    head, _ = run_with_handler(write_two_events, post_and_read("1.1"))
    for line in ("content-type: text/event-stream", "cache-control: no-cache", "x-accel-buffering: no", "x-more: 1",
                 "transfer-encoding: chunked"):
        assert f"{line}\r\n" in head


def test_every_burst_is_one_chunk():
    _, body = run_with_handler(write_two_events, post_and_read("1.1"))
    assert body == b"9\r\ndata: a\n\n\r\n9\r\ndata: b\n\n\r\n0\r\n\r\n!"


@pytest.mark.parametrize("headers", [(), ("Connection: keep-alive",)])
def test_http_1_0_clients_read_until_the_connection_closes(headers):
    async def scenario(reader, writer):
        await post_and_read("1.0", *headers)(reader, writer)
        return await reader.read()
    assert run_with_handler(write_two_events, scenario) == b""
    _, body = run_with_handler(write_two_events, post_and_read("1.0", *headers))
    assert body == b"data: a\n\ndata: b\n\n!"


def test_connection_serves_several_streams_in_turn():
    async def scenario(reader, writer):
        return [await post_and_read("1.1")(reader, writer) for _ in range(2)]
    first, second = run_with_handler(write_two_events, scenario)
    assert first[1] == second[1]


def test_keepalive_comments_are_sent_while_idle():
    async def handler(request):
        async with open_response_stream(request, {}, 30.0, str, keepalive_seconds=0.01):
            await asyncio.Event().wait()

    async def scenario(reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        return await reader.readexactly(16)
    assert run_with_handler(handler, scenario) == b"3\r\n:\n\n\r\n" * 2


def test_slow_client_is_waited_for_until_its_connection_is_aborted():
    stuck = asyncio.Queue()

    async def handler(request):
        async with open_response_stream(request, {}, 30.0, str) as out:
            while not request.protocol.writing_paused:
                out.write(b"x" * 2**20)
                await asyncio.sleep(0)
            stuck.put_nowait((out, asyncio.ensure_future(out.drain())))
            await asyncio.Event().wait()

    async def scenario(reader, writer):
        writer.transport.pause_reading()
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
        out, draining = await stuck.get()
        assert out.is_paused
        assert not draining.done()
        out.abort_connection()
        await asyncio.wait([draining])
    run_with_handler(handler, scenario)


def test_writing_after_a_disconnect_raises_an_error():
    ends = asyncio.Queue()

    async def handler(request):
        async with open_response_stream(request, {}, 30.0, str) as out:
            out.abort_connection()
            try:
                out.write(b"x")
            except ConnectionError as error:
                ends.put_nowait(error)
        return out.response

    async def scenario(reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert isinstance(await ends.get(), ConnectionResetError)
    run_with_handler(handler, scenario)


def read_stream(error):
    async def handler(request):
        async with open_response_stream(request, {"x-more": "yes"}, 1.0, lambda error: f"data: {error}\n\n") as out:
            out.write(b"data: a\n\n")
            if error is not None:
                raise error
        return out.response

    async def main():
        app = web.Application()
        app.add_routes([web.get("/", handler)])
        async with TestClient(TestServer(app)) as client:
            answer = await client.get("/")
            assert answer.headers["x-more"] == "yes"
            return await answer.text()
    return asyncio.run(main())


def test_stream_ends_when_its_block_ends():
    assert read_stream(None) == "data: a\n\n"


def test_exception_in_the_block_is_the_last_event():
    assert read_stream(GenerationFailed("broken")) == "data: a\n\ndata: broken\n\n"


@pytest.mark.parametrize("error", [Cancelled("too slow"), ConnectionResetError("gone")])
def test_cancelled_stream_is_cut_off(error):
    with pytest.raises(ClientPayloadError):
        read_stream(error)


# ---------------------------------------------------------------------------------------------------------------------
# The pump


class FakeEventStream:
    """Double of an event stream; while `is_paused`, its client reads once `can_read` is set."""

    def __init__(self):
        self.is_paused = False
        self.failure = None
        self.written = []
        self.can_read = asyncio.Event()

    def write(self, data):
        self.written.append(data)

    def abort_connection(self):
        pass

    async def drain(self):
        if self.is_paused:
            await self.can_read.wait()


class TextRenderer:
    """Renderer of texts as their bytes: a full stop ends the stream, an exclamation mark raises ValueError."""

    is_finished = False

    def render(self, events):
        text = "".join(event.text for event in events)
        if "!" in text:
            raise ValueError(text)
        self.is_finished = "." in text
        return text.encode()


def make_flusher(clock=lambda: 0.0):
    """Return a flusher; by the default clock no flush takes time, so that none is put off."""
    return PumpFlusher(clock)


def run_pump(scenario):
    async def main():
        stream = RequestStream(Request("0", (1,), 1), 10**6, pytest.fail, pytest.fail, lambda: None)
        fake_stream = FakeEventStream()
        pumping = asyncio.create_task(EventPump(stream, TextRenderer(), fake_stream, make_flusher()).run())

        async def put_texts(*texts):
            for text in texts:
                stream.put(TokenEvent(0, text, 0.0, False))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await scenario(put_texts, fake_stream, pumping)
        assert pumping.done()
    asyncio.run(main())


def test_burst_of_events_is_written_at_once():
    async def scenario(put_texts, fake_stream, pumping):
        await put_texts("a", "b")
        await put_texts("c")
        assert fake_stream.written == [b"ab", b"c"]
        await put_texts(".")
        await pumping
    run_pump(scenario)


class PumpOnFakeClock:
    """A pump whose writes take `seconds_per_write` by a clock of its own, and the pauses that its flusher makes."""

    def __init__(self, seconds_per_write):
        self.now, self.pauses = 100.0, []
        self.seconds_per_write = seconds_per_write

    def render_queued_events(self):
        return b"x"

    def write(self, data):
        self.now += self.seconds_per_write

    def pause(self, seconds, flush):
        self.pauses.append(round(seconds, 6))
        self.now += seconds


@pytest.mark.parametrize(("seconds_per_write", "gaps", "pauses"), [
    (0.0, [0.0, 0.0], []),  # nothing is put off where writing takes no time
    (0.002, [0.0, 0.010, 0.006], []),  # nor where it takes at most a quarter of the time
    (0.002, [0.0, 0.005, 0.000], [0.001, 0.006]),
    (0.050, [0.0, 0.005, 0.019], [0.015, 0.001]),  # at most 20 ms
])
def test_flush_waits_until_writing_takes_at_most_a_quarter_of_the_time(monkeypatch, seconds_per_write, gaps, pauses):
    async def main():
        pump, loop = PumpOnFakeClock(seconds_per_write), asyncio.get_running_loop()
        flusher = make_flusher(lambda: pump.now)
        with monkeypatch.context() as patch:
            patch.setattr(sse.EventPump, "render_queued_events", PumpOnFakeClock.render_queued_events)
            patch.setattr(loop, "call_later", pump.pause)
            patch.setattr(loop, "call_soon", lambda flush: None)
            for gap in gaps:
                pump.now += gap
                flusher.add(pump)
                flusher._flush()
        assert pump.pauses == pauses
    asyncio.run(main())


def test_events_of_several_steps_are_written_at_once_while_a_flush_is_put_off():
    now = 100.0

    async def main():
        nonlocal now
        stream = RequestStream(Request("0", (1,), 1), 10**6, pytest.fail, pytest.fail, lambda: None)
        fake_stream = FakeEventStream()

        def write(data):
            nonlocal now
            now += 0.002
            fake_stream.written.append(data)
        fake_stream.write = write
        pumping = asyncio.create_task(EventPump(stream, TextRenderer(), fake_stream, make_flusher(lambda: now)).run())
        await asyncio.sleep(0)
        for text in "abc":
            stream.put(TokenEvent(0, text, 0.0, False))
            await asyncio.sleep(0)
        assert fake_stream.written == [b"a"]  # the next is written 6 ms later
        stream.put(TokenEvent(0, ".", 0.0, False))
        await pumping
        assert fake_stream.written == [b"a", b"bc."]
    asyncio.run(main())


def test_events_are_queued_while_the_client_does_not_read():
    async def scenario(put_texts, fake_stream, pumping):
        fake_stream.is_paused = True
        for text in "abc":
            await put_texts(text)
        assert fake_stream.written == [b"a"]
        fake_stream.is_paused = False
        fake_stream.can_read.set()
        await put_texts("d")
        assert b"".join(fake_stream.written) == b"abcd"
        await put_texts(".")
        await pumping
    run_pump(scenario)


def test_renderer_exception_ends_the_pump():
    async def scenario(put_texts, fake_stream, pumping):
        await put_texts("a")
        await put_texts("!", ".")
        with pytest.raises(ValueError, match="!"):
            await pumping
        await put_texts("more")
        assert fake_stream.written == [b"a"]
    run_pump(scenario)


def test_event_stream_remembers_the_failure_sent_to_the_client():
    async def main():
        stream = RequestStream(Request("0", (1,), 1), 10**6, pytest.fail, pytest.fail, lambda: None)
        fake_stream, failure = FakeEventStream(), GenerationFailed("broken")
        stream.put(TokenEvent(0, "a", 0.0, False))
        stream.put(FailedEvent(failure))
        await EventPump(stream, GenerateStreamRenderer(ValidatedRequest(stream.request, None), False, ""), fake_stream,
                        make_flusher()).run()
        assert fake_stream.failure is failure
    asyncio.run(main())


def test_cancelled_pump_writes_nothing_more():
    async def scenario(put_texts, fake_stream, pumping):
        await put_texts()
        pumping.cancel()
        await put_texts("a")
        assert pumping.cancelled()
        assert fake_stream.written == []
    run_pump(scenario)
