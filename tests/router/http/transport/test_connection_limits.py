"""Limits of connections: slow, idle and silent clients, and too many of them, against a server of its own."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from aiohttp import web

from router.config import RouterConfig
from router.http.server import PROTOCOL_OPTIONS, HttpServer, create_listening_socket
from router.http.transport import connection_limits
from router.http.transport.body import read_decompressed_body, send_json
from router.http.transport.connection_limits import ConnectionLimits, Connections

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HEAD = b"POST / HTTP/1.1\r\nHost: weft\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
SHORT = 0.2  # seconds of a limit that a test waits for
LARGE_BODY = b"x" * 5_000_000


class App:
    """Server whose handler reads the body, and counts what it answers and what is cancelled."""

    connections: Connections

    def __init__(self) -> None:
        self.num_answered = self.num_cancelled = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            await read_decompressed_body(request)
            if request.path != "/live":
                await self.may_answer.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        self.num_answered += 1
        if request.path == "/pieces":
            return await send_json(request, [LARGE_BODY], len(LARGE_BODY), 20.0, headers={})
        return web.Response(body=LARGE_BODY if request.path == "/large" else b"{}")

    async def connect(self) -> Streams:
        return await asyncio.open_connection("127.0.0.1", self.port)


@pytest.fixture(autouse=True)
def short_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "SWEEP_SECONDS", 0.02)


def run(limits: ConnectionLimits, scenario: Callable[[App], Awaitable[None]]) -> None:
    async def main() -> None:
        app, web_app = App(), web.Application()
        web_app.add_routes([web.route("*", "/{path:.*}", app.handle)])
        server = HttpServer(web_app, Connections(limits))
        with create_listening_socket("127.0.0.1", 0) as listening_socket:
            app.port = await server.start(listening_socket)
            app.connections = server._connections
        try:
            await asyncio.wait_for(scenario(app), 20)
        finally:
            await server.close()
    asyncio.run(main())


async def read_error(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Return status and message of a response, after which the connection must end."""
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert b"application/json" in head
    return int(head.split()[1]), json.loads(body)["error"]


async def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it did not come")


async def send(streams: Streams, data: bytes = HEAD + b"{}") -> bytes:
    reader, writer = streams
    writer.write(data)
    return (await reader.readuntil(b"{}")).partition(b"\r\n")[0]


@pytest.mark.parametrize(("sent", "message"), [
    (b"POST / HTT", f"the head of the request took more than {SHORT} seconds (--header-timeout)"),
    (HEAD[:-2], f"the head of the request took more than {SHORT} seconds (--header-timeout)"),
    (HEAD + b"{", f"the body of the request took more than {SHORT} seconds (--body-timeout)")])
def test_client_that_does_not_finish_its_request_is_disconnected_with_the_reason(sent: bytes, message: str) -> None:
    async def scenario(app: App) -> None:
        reader, writer = await app.connect()
        writer.write(sent)
        assert await read_error(reader) == (408, message)
        assert app.num_answered == 0
        writer.close()
    run(ConnectionLimits(header_timeout=SHORT, body_timeout=SHORT), scenario)


def test_client_that_sends_nothing_is_disconnected_in_silence() -> None:
    async def scenario(app: App) -> None:
        reader, writer = await app.connect()
        assert await reader.read() == b""
        writer.close()
    run(ConnectionLimits(header_timeout=SHORT), scenario)


def test_head_that_comes_byte_by_byte_gets_no_further_time() -> None:
    async def scenario(app: App) -> None:
        reader, writer = await app.connect()
        answer = asyncio.create_task(reader.readuntil(b"\r\n"))
        for byte in HEAD[:-2]:
            if answer.done():
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(SHORT / 20)
        assert b"408" in await answer
        writer.close()
    run(ConnectionLimits(header_timeout=SHORT), scenario)


def test_connection_is_kept_between_requests_for_its_own_time() -> None:
    async def scenario(app: App) -> None:
        streams = await app.connect()
        for _ in range(3):
            assert await send(streams) == b"HTTP/1.1 200 OK"
            await asyncio.sleep(2 * SHORT)  # longer than a head may take
        streams[1].close()
    run(ConnectionLimits(header_timeout=SHORT), scenario)


def test_idle_connection_is_closed_in_silence() -> None:
    async def scenario(app: App) -> None:
        streams = await app.connect()
        await send(streams)
        assert await streams[0].read() == b""
        streams[1].close()
    run(ConnectionLimits(keep_alive_timeout=SHORT), scenario)


def test_second_head_on_a_connection_has_its_limit_too() -> None:
    async def scenario(app: App) -> None:
        streams = await app.connect()
        await send(streams)
        streams[1].write(HEAD[:9])
        assert (await read_error(streams[0]))[0] == 408
        streams[1].close()
    run(ConnectionLimits(header_timeout=SHORT), scenario)


def test_second_head_in_the_segment_of_the_first_has_its_limit_too() -> None:
    """Regression: the connection counted as idle, and got the time of one."""
    async def scenario(app: App) -> None:
        for behind in (b"", HEAD[:9]):
            reader, writer = await app.connect()
            writer.write(b"GET /live HTTP/1.1\r\nHost: weft\r\n\r\n" + behind)
            assert b"200" in await reader.readuntil(b"{}")
            if behind:
                assert (await read_error(reader))[0] == 408
            else:
                await asyncio.sleep(2 * SHORT)
                assert await send((reader, writer)) == b"HTTP/1.1 200 OK"
            writer.close()
    run(ConnectionLimits(header_timeout=SHORT), scenario)


def test_connection_whose_head_ended_byte_by_byte_is_kept_as_any_other() -> None:
    async def scenario(app: App) -> None:
        streams = await app.connect()
        head = b"GET /live HTTP/1.1\r\nHost: weft\r\n\r\n"
        streams[1].write(head[:-3])
        for byte in head[-3:-1]:
            await asyncio.sleep(SHORT / 20)
            streams[1].write(bytes([byte]))
        await asyncio.sleep(SHORT / 20)
        assert await send(streams, head[-1:]) == b"HTTP/1.1 200 OK"
        await asyncio.sleep(2 * SHORT)  # longer than a head may take
        assert await send(streams) == b"HTTP/1.1 200 OK"
        streams[1].close()
    run(ConnectionLimits(header_timeout=SHORT), scenario)


def test_answer_may_take_any_time() -> None:
    async def scenario(app: App) -> None:
        app.may_answer.clear()
        streams = await app.connect()
        answer = asyncio.create_task(send(streams))
        await asyncio.sleep(4 * SHORT)
        app.may_answer.set()
        assert await answer == b"HTTP/1.1 200 OK"
        streams[1].close()
    run(ConnectionLimits(header_timeout=SHORT, body_timeout=SHORT, keep_alive_timeout=SHORT), scenario)


async def request_large_answer(app: App, reader: socket.socket, path: bytes = b"/large") -> None:
    """Send a request on a connection whose buffers hold little of the answer."""
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(reader, ("127.0.0.1", app.port))
    await loop.sock_sendall(reader, HEAD.replace(b" / ", b" %b " % path) + b"{}")


async def read_until_end(reader: socket.socket, pause: float) -> int:
    """Read with pauses until the connection ends or the whole answer is there; return the number of bytes."""
    num_received = 0
    with suppress(ConnectionResetError):
        while num_received < len(LARGE_BODY) and (data := await asyncio.get_running_loop().sock_recv(reader, 400_000)):
            num_received += len(data)
            await asyncio.sleep(pause)
    return num_received


def test_client_that_does_not_read_its_answer_is_disconnected() -> None:
    async def scenario(app: App) -> None:
        with socket.socket() as reader:
            await request_large_answer(app, reader)
            await asyncio.sleep(4 * SHORT)
            assert await read_until_end(reader, 0.0) < len(LARGE_BODY)
    run(ConnectionLimits(slow_client_timeout=SHORT), scenario)


def test_client_that_reads_slowly_gets_its_whole_answer() -> None:
    async def scenario(app: App) -> None:
        with socket.socket() as reader:
            await request_large_answer(app, reader)
            assert await read_until_end(reader, SHORT / 200) >= len(LARGE_BODY)
    run(ConnectionLimits(slow_client_timeout=4 * SHORT, keep_alive_timeout=SHORT), scenario)


@pytest.mark.parametrize("path", [b"/large", b"/pieces"])
def test_answer_that_is_read_slowest_is_given_up_beyond_a_number_of_unread_bytes(
        monkeypatch: pytest.MonkeyPatch, path: bytes) -> None:
    """Regression: hundreds of clients that read a trickle of their answers held as many bytes as they liked."""
    async def scenario(app: App) -> None:
        def count_unsent_bytes() -> int:
            return sum(connection.num_unsent_bytes for connection in app.connections._unread)

        with socket.socket() as slow, socket.socket() as other:
            await request_large_answer(app, slow, path)
            await wait_until(lambda: count_unsent_bytes() > 200_000)  # more than is written at a time
            monkeypatch.setattr(connection_limits, "MAX_UNREAD_BYTES", count_unsent_bytes() * 3 // 2)
            await request_large_answer(app, other, path)
            await wait_until(lambda: app.num_answered == 2)
            assert await read_until_end(other, 0.0) >= len(LARGE_BODY)
            assert await read_until_end(slow, 0.0) < len(LARGE_BODY)
    run(ConnectionLimits(), scenario)


def test_new_connection_takes_the_place_of_the_one_without_a_request_for_longest() -> None:
    async def scenario(app: App) -> None:
        used, partial, idle = [await app.connect() for _ in range(3)]
        app.may_answer.clear()
        answer = asyncio.create_task(send(used))
        partial[1].write(HEAD[:9])
        await asyncio.sleep(0.1)
        newest = await app.connect()
        assert await read_error(partial[0]) == (503, "other connections needed the place of this one "
                                                     "(--max-connections, --max-connections-per-address)")
        app.may_answer.set()
        assert await answer == b"HTTP/1.1 200 OK"
        for streams in (idle, newest):
            assert await send(streams) == b"HTTP/1.1 200 OK"
        for _, writer in (used, partial, idle, newest):
            writer.close()
    run(ConnectionLimits(max_connections=3, max_connections_per_address=10), scenario)


def test_connection_beyond_the_limit_is_refused_while_all_others_are_answered() -> None:
    async def scenario(app: App) -> None:
        app.may_answer.clear()
        used = [await app.connect() for _ in range(2)]
        answers = [asyncio.create_task(send(streams)) for streams in used]
        await asyncio.sleep(0.1)
        reader, writer = await app.connect()
        assert await read_error(reader) == (503, "there are 2 connections, as many as allowed (--max-connections)")
        app.may_answer.set()
        assert await asyncio.gather(*answers) == [b"HTTP/1.1 200 OK"] * 2
        for _, each in (*used, (reader, writer)):
            each.close()
    run(ConnectionLimits(max_connections=2, max_connections_per_address=10), scenario)


def test_probe_is_answered_while_all_connections_are_used() -> None:
    """A server whose clients all waited for answers was restarted, since its probes were refused."""
    async def scenario(app: App) -> None:
        app.may_answer.clear()
        used = await app.connect()
        used[1].write(HEAD + b"{}")
        await wait_until(lambda: bool(app.connections._num_connections and not app.connections._evictable))
        idle = [await app.connect() for _ in range(connection_limits.MAX_PROBE_PLACES)]
        posting = await app.connect()
        posting[1].write(HEAD + b"{}")
        assert await read_error(posting[0]) == (503, "there are 1 connections, as many as allowed (--max-connections)")
        probing = await app.connect()
        probing[1].write(b"GET /live HTTP/1.1\r\nHost: weft\r\n\r\n")
        head = (await probing[0].read()).partition(b"\r\n\r\n")[0]  # the connection is closed after it
        assert head.startswith(b"HTTP/1.1 200")
        app.may_answer.set()
        for _, writer in (used, posting, probing, *idle):
            writer.close()
        await wait_until(lambda: not app.connections._num_connections)
        assert app.connections.num_probe_places == 0
    run(ConnectionLimits(max_connections=1, max_connections_per_address=10_000), scenario)


def test_refused_client_reads_the_reason_although_its_request_was_not_read() -> None:
    """To close a socket with unread input resets the connection, and discards what was written."""
    async def scenario(app: App) -> None:
        app.may_answer.clear()
        first = await app.connect()
        first[1].write(HEAD + b"{}")
        await wait_until(lambda: bool(app.connections._num_connections and not app.connections._evictable))
        for _ in range(20):
            reader, writer = await app.connect()
            writer.write(HEAD.replace(b"Length: 2", b"Length: 100000") + b"x" * 100_000)
            assert (await read_error(reader))[0] == 503
            writer.close()
        app.may_answer.set()
        first[1].close()
        await wait_until(lambda: not app.connections.num_lingering)
    run(ConnectionLimits(max_connections=1), scenario)


def test_clients_that_do_not_leave_after_their_refusal_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "LINGERING_SECONDS", 0.2)

    async def scenario(app: App) -> None:
        reader, writer = await app.connect()
        writer.write(b"POST / HTT")
        assert (await read_error(reader))[0] == 408
        assert app.connections._num_connections == app.connections.num_lingering == 1
        await wait_until(lambda: not app.connections._num_connections)
        assert app.connections.num_lingering == 0
        writer.close()
    run(ConnectionLimits(header_timeout=SHORT), scenario)


def test_address_at_its_limit_gives_up_its_oldest_connection_without_a_request() -> None:
    async def scenario(app: App) -> None:
        idle, other = [await app.connect() for _ in range(2)]
        newest = await app.connect()
        assert await idle[0].read() == b""
        for streams in (other, newest):
            assert await send(streams) == b"HTTP/1.1 200 OK"
        for _, writer in (idle, other, newest):
            writer.close()
    run(ConnectionLimits(max_connections_per_address=2), scenario)


def test_client_that_leaves_during_its_request_leaves_nothing_behind() -> None:
    async def scenario(app: App) -> None:
        app.may_answer.clear()
        for _ in range(5):
            _, writer = await app.connect()
            writer.write(HEAD + b"{}")
            await asyncio.sleep(0.05)
            writer.close()
        await wait_until(lambda: app.num_cancelled == 5)
        app.may_answer.set()
        assert (app.connections._num_connections, len(app.connections._evictable)) == (0, 0)
    run(ConnectionLimits(), scenario)


def test_small_answer_that_is_not_read_does_not_hold_the_connection() -> None:
    async def scenario(app: App) -> None:
        with socket.socket() as reader:
            await request_large_answer(app, reader)
            await wait_until(lambda: app.num_answered == 1)
            [connection] = app.connections._unread
            assert connection.transport is not None
            connection.resume_writing()  # as if no more than a small part was left
            await asyncio.sleep(4 * SHORT)
            assert await read_until_end(reader, 0.0) < len(LARGE_BODY)
    run(ConnectionLimits(slow_client_timeout=SHORT), scenario)


def test_sweep_after_a_standstill_closes_nothing() -> None:
    async def scenario(app: App) -> None:
        streams = await app.connect()
        streams[1].write(HEAD)
        await asyncio.sleep(0.05)
        deadline = asyncio.get_running_loop().time() + connection_limits.MAX_LATENESS_SECONDS + SHORT
        while asyncio.get_running_loop().time() < deadline:  # as if this process was stopped
            pass
        assert await send(streams, b"{}") == b"HTTP/1.1 200 OK"
        streams[1].close()
    run(ConnectionLimits(body_timeout=SHORT), scenario)


def test_refusal_of_an_expectation_leaves_the_connection_idle() -> None:
    async def scenario(app: App) -> None:
        streams = await app.connect()
        streams[1].write(b"POST / HTTP/1.1\r\nHost: weft\r\nExpect: cake\r\nContent-Length: 2\r\n\r\n{}")
        assert b"417" in await streams[0].readuntil(b"\r\n\r\n")
        await asyncio.sleep(2 * SHORT)
        assert b"408" not in await streams[0].read(1000)
        streams[1].close()
    run(ConnectionLimits(header_timeout=SHORT, keep_alive_timeout=4 * SHORT), scenario)


@pytest.mark.parametrize(("peer", "address"), [
    ("10.0.0.7", "10.0.0.7"), ("::ffff:10.0.0.7", "10.0.0.7"), ("2001:db8::1:2:3:4", "2001:db8::/64"),
    ("fe80::1%eth0", "fe80::/64")])
def test_address_of_ipv6_is_the_network(peer: str, address: str) -> None:
    assert connection_limits.normalize_client_address(peer) == address


def test_one_address_has_a_limit_of_its_own_and_its_places_come_back() -> None:
    async def scenario(app: App) -> None:
        app.may_answer.clear()
        held = [await app.connect() for _ in range(2)]
        for _, writer in held:
            writer.write(HEAD + b"{}")
        await asyncio.sleep(0.1)
        reader, writer = await app.connect()
        assert await read_error(reader) == (503, "127.0.0.1 has 2 connections, as many as one address may "
                                                 "(--max-connections-per-address)")
        writer.close()
        app.may_answer.set()
        held[0][1].close()
        await held[0][1].wait_closed()
        await asyncio.sleep(0.1)
        streams = await app.connect()
        assert await send(streams) == b"HTTP/1.1 200 OK"
        for _, each in (*held, streams):
            each.close()
    run(ConnectionLimits(max_connections_per_address=2), scenario)


@pytest.mark.parametrize(("sent", "message"), [
    (b"\x16\x03\x01 TLS\r\n\r\n", "this is not HTTP"), (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", "not valid HTTP")])
def test_input_that_is_not_http_is_answered_with_json(sent: bytes, message: str) -> None:
    async def scenario(app: App) -> None:
        reader, writer = await app.connect()
        writer.write(sent)
        status, error = await read_error(reader)
        assert (status, message in error) == (400, True)
        writer.close()
    run(ConnectionLimits(), scenario)


def test_limits_are_those_of_the_settings() -> None:
    config = RouterConfig(header_timeout=3.0, max_connections=7)
    assert ConnectionLimits.from_config(config) == ConnectionLimits(header_timeout=3.0, max_connections=7)
    assert ConnectionLimits(max_connections=7).resolve_numbers() == (7, 3)
    assert PROTOCOL_OPTIONS["auto_decompress"] is False
