"""Tests of clients on real sockets that do not read their responses. Other clients are not affected."""

import asyncio
import json
import socket

import pytest
from support.expected_streams import ask
from support.in_process_server import body, events_of, play

from router.http.transport.sse import EventStream

LENGTH = 500
HIGH_WATER = 64 * 1024  # bytes that a transport takes before writing pauses
STEP = 8 * 600  # maximum bytes of one step's rendered events
SLOW = {"http": True, "slow_client_buffer": 4096, "slow_client_timeout": 60.0, "tokens_per_step": 8}


class Reader:
    """Client that reads only on request, with a small receive buffer in the kernel."""

    def __init__(self, weft):
        self._loop = asyncio.get_running_loop()
        self._port = weft.port
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.setblocking(False)

    async def ask(self, prompt):
        content = json.dumps(body(prompt, LENGTH, top_n_tokens=5)).encode()
        head = f"POST /generate_stream HTTP/1.1\r\nHost: weft\r\nContent-Type: application/json\r\n" \
               f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        await self._loop.sock_connect(self._socket, ("127.0.0.1", self._port))
        await self._loop.sock_sendall(self._socket, head.encode() + content)

    async def read_all(self):
        """Return the rest of the response, and whether it ended properly."""
        data = b""
        try:
            while part := await self._loop.sock_recv(self._socket, 65536):
                data += part
        except ConnectionResetError:
            return data, False
        return data, data.endswith(b"0\r\n\r\n")

    def close(self):
        self._socket.close()


@pytest.fixture
def play_slow(tmp_path):
    """Return a function that runs a story with a client that does not read, and with the calls of `hold`."""
    def run(story, **settings):
        async def told(weft):
            reader, held = Reader(weft), weft.watch("hold")
            await reader.ask("a loom")
            try:
                await story(weft, reader, held)
                await weft.check_idle()
            finally:
                reader.close()
        play(told, tmp_path, **SLOW | settings)
    return run


def events_in(data):
    """Return the events of a chunked response."""
    _, _, rest = data.partition(b"\r\n\r\n")
    content = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        content += rest[:int(size, 16)]
        rest = rest[int(size, 16) + 2:]
    return events_of(content.decode())


@pytest.mark.slow
def test_who_reads_again_in_time_gets_every_token_once(play_slow):
    async def story(weft, reader, held):
        await held.get()
        await weft.hear_right(ask("another", 50))
        data, is_whole = await reader.read_all()
        events = events_in(data)
        assert is_whole
        assert [event["index"] for event in events] == list(range(1, LENGTH + 1))
        assert "".join(event["token"]["text"] for event in events) == weft.expected_text("a loom", LENGTH)
        assert weft.shards.num_sent_again > 0
    play_slow(story)


@pytest.mark.slow
def test_little_is_kept_for_who_does_not_read(play_slow):
    async def story(weft, reader, held):
        number = await held.get()
        await weft.hear_right(ask("another", 50))
        stream = weft.engine._clients._deliveries[number].stream
        (connection,) = weft.server._runner.server.connections
        assert 0 < stream.size <= weft.config.slow_client_buffer + 3 * STEP
        assert connection.transport.get_write_buffer_size() <= HIGH_WATER + weft.config.slow_client_buffer + 3 * STEP
        await weft.settle()
        assert not weft.ranks[0].worker.ledger.sequences
        await reader.read_all()
    play_slow(story)


@pytest.mark.slow
def test_who_does_not_read_for_too_long_is_cut_off(play_slow):
    async def story(weft, reader, held):
        await held.get()
        await weft.hear_right(ask("another", 50))
        await weft.engine.drained()
        data, is_whole = await reader.read_all()
        assert data.startswith(b"HTTP/1.1 200")
        assert not is_whole
    play_slow(story, slow_client_timeout=0.05)


@pytest.mark.slow
def test_who_leaves_while_being_held_is_forgotten(play_slow):
    async def story(weft, reader, held):
        left = weft.watch("cancel")
        number = await held.get()
        reader.close()
        assert await left.get() == number
    play_slow(story)


def test_who_does_not_read_to_the_end_of_what_is_complete_is_cut_off_in_time(play_slow, monkeypatch):
    cut = EventStream.cut

    async def story(weft, reader, held):
        was_cut = asyncio.Event()
        monkeypatch.setattr(EventStream, "cut", lambda out: (cut(out), was_cut.set()))
        await weft.engine.drained()
        await was_cut.wait()
        assert held.empty()
        _, whole = await reader.read_all()
        assert not whole
    play_slow(story, slow_client_timeout=0.2, slow_client_buffer=4_000_000)
