"""Tests of clients on real sockets that do not read their responses. Other clients are not affected."""

import asyncio
import json
import socket

import pytest
from support.servers.expected_streams import make_text_request
from support.servers.in_process_server import make_generate_body, parse_stream_events, play_scenario

from router.http.transport.sse import EventStream

MAX_NEW_TOKENS = 500
TRANSPORT_HIGH_WATER_BYTES = 64 * 1024  # bytes that a transport takes before writing pauses
MAX_STEP_BYTES = 8 * 600  # maximum bytes of one step's rendered events
SLOW_CLIENT_SETTINGS = {"http": True, "slow_client_buffer": 4096, "slow_client_timeout": 60.0, "tokens_per_step": 8}


class SlowReader:
    """Client that reads only on request, with a small receive buffer in the kernel."""

    def __init__(self, weft):
        self._loop = asyncio.get_running_loop()
        self._port = weft.port
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.setblocking(False)

    async def send_request(self, prompt):
        content = json.dumps(make_generate_body(prompt, MAX_NEW_TOKENS, top_n_tokens=5)).encode()
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
def play_with_slow_reader(tmp_path):
    """Return a function that runs a scenario with a client that does not read, and with the calls of `suspend`."""
    def run(scenario, **settings):
        async def scenario_with_reader(weft):
            reader, held = SlowReader(weft), weft.watch_scheduler_calls("suspend")
            await reader.send_request("a loom")
            try:
                await scenario(weft, reader, held)
                await weft.check_idle()
            finally:
                reader.close()
        play_scenario(scenario_with_reader, tmp_path, **SLOW_CLIENT_SETTINGS | settings)
    return run


def parse_chunked_events(data):
    """Return the events of a chunked response."""
    _, _, rest = data.partition(b"\r\n\r\n")
    content = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        content += rest[:int(size, 16)]
        rest = rest[int(size, 16) + 2:]
    return parse_stream_events(content.decode())


@pytest.mark.slow
def test_client_that_resumes_reading_in_time_gets_every_token_once(play_with_slow_reader):
    async def scenario(weft, reader, held):
        await held.get()
        await weft.check_streams(make_text_request("another", 50))
        data, is_complete = await reader.read_all()
        events = parse_chunked_events(data)
        assert is_complete
        assert [event["index"] for event in events] == list(range(1, MAX_NEW_TOKENS + 1))
        expected_text = weft.compute_expected_text("a loom", MAX_NEW_TOKENS)
        assert "".join(event["token"]["text"] for event in events) == expected_text
        assert weft.shards.num_reentered > 0
    play_with_slow_reader(scenario)


@pytest.mark.slow
def test_buffers_of_a_slow_client_are_bounded(play_with_slow_reader):
    async def scenario(weft, reader, held):
        number = await held.get()
        await weft.check_streams(make_text_request("another", 50))
        stream = weft.engine._client_streams._builders[number].stream
        (connection,) = weft.server._runner.server.connections
        assert 0 < stream.num_bytes <= weft.config.slow_client_buffer + 3 * MAX_STEP_BYTES
        max_written = TRANSPORT_HIGH_WATER_BYTES + weft.config.slow_client_buffer + 3 * MAX_STEP_BYTES
        assert connection.transport.get_write_buffer_size() <= max_written
        await weft.wait_for_steps_in_flight()
        assert not weft.ranks[0].worker.shard_state.sequences
        await reader.read_all()
    play_with_slow_reader(scenario)


@pytest.mark.slow
def test_client_that_does_not_read_for_too_long_is_disconnected(play_with_slow_reader):
    async def scenario(weft, reader, held):
        await held.get()
        await weft.check_streams(make_text_request("another", 50))
        await weft.engine.wait_until_drained()
        data, is_complete = await reader.read_all()
        assert data.startswith(b"HTTP/1.1 200")
        assert not is_complete
    play_with_slow_reader(scenario, slow_client_timeout=0.05)


@pytest.mark.slow
def test_held_request_is_cancelled_when_its_client_disconnects(play_with_slow_reader):
    async def scenario(weft, reader, held):
        cancelled = weft.watch_scheduler_calls("cancel")
        number = await held.get()
        reader.close()
        assert await cancelled.get() == number
    play_with_slow_reader(scenario)


def test_client_that_does_not_read_a_finished_answer_is_disconnected(play_with_slow_reader, monkeypatch):
    abort_connection = EventStream.abort_connection

    async def scenario(weft, reader, held):
        was_aborted = asyncio.Event()
        monkeypatch.setattr(EventStream, "abort_connection",
                            lambda stream: (abort_connection(stream), was_aborted.set()))
        await weft.engine.wait_until_drained()
        await was_aborted.wait()
        assert held.empty()
        _, is_complete = await reader.read_all()
        assert not is_complete
    play_with_slow_reader(scenario, slow_client_timeout=0.2, slow_client_buffer=4_000_000)
