import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.harness.stream_load import InvalidAnswerError, StreamConnection, StreamLoad

RESPONSE_HEAD = b"HTTP/1.1 200 OK\r\nServer: x/3.0\r\n\r\n"
CHUNKED_EVENT = b'f\r\ndata: {"a": 1}\n\n\r\n'
LAST_CHUNK = b"0\r\n\r\n"


class FakeTransport:
    """A transport that keeps what was written to it."""

    def __init__(self) -> None:
        self.request_bodies: list[Any] = []
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.request_bodies.append(json.loads(data.partition(b"\r\n\r\n")[2]))

    def abort(self) -> None:
        self.aborted = True


def run_with_client(scenario: Callable[[StreamLoad, StreamConnection, FakeTransport], None]) -> None:
    async def run_scenario() -> None:
        load, transport = StreamLoad("host:1", seed=0), FakeTransport()
        client = StreamConnection(load)
        client.connection_made(transport)  # type: ignore[arg-type]
        scenario(load, client, transport)
        try:
            await load.run_for(0.0)
        finally:
            load.abort_connections()
        assert transport.aborted
    asyncio.run(run_scenario())


def make_answer(transport: FakeTransport) -> bytes:
    return RESPONSE_HEAD + CHUNKED_EVENT * transport.request_bodies[-1]["parameters"]["max_new_tokens"] + LAST_CHUNK


def test_stream_sends_again_after_its_answer() -> None:
    def scenario(load: StreamLoad, client: StreamConnection, transport: FakeTransport) -> None:
        client.data_received(make_answer(transport))
        client.data_received(make_answer(transport))
        assert len(transport.request_bodies) == 3
        assert load.num_tokens == sum(body["parameters"]["max_new_tokens"] for body in transport.request_bodies[:2])
    run_with_client(scenario)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11])
def test_events_are_counted_however_they_are_split(size: int) -> None:
    def scenario(load: StreamLoad, client: StreamConnection, transport: FakeTransport) -> None:
        data = make_answer(transport)
        client.data_received(data[:20])
        for start in range(20, len(data), size):
            client.data_received(data[start:start + size])
        assert load.num_tokens == transport.request_bodies[0]["parameters"]["max_new_tokens"]
        assert len(transport.request_bodies) == 2
    run_with_client(scenario)


def test_first_token_is_no_gap_and_joint_tokens_have_zero_gaps() -> None:
    def scenario(load: StreamLoad, client: StreamConnection, transport: FakeTransport) -> None:
        client.data_received(RESPONSE_HEAD + CHUNKED_EVENT * 3)
        assert list(load.token_gaps) == [0.0, 0.0]
        client.data_received(CHUNKED_EVENT)
        assert len(load.token_gaps) == 3
        assert load.token_gaps[2] > 0.0
    run_with_client(scenario)


def test_short_answer_ends_the_run() -> None:
    with pytest.raises(InvalidAnswerError, match=r"(?s)got 1 events, the last: .*data: \{\"a\": 1\}"):
        run_with_client(lambda load, client, transport: client.data_received(
            RESPONSE_HEAD + CHUNKED_EVENT + LAST_CHUNK))


def test_error_answer_ends_the_run() -> None:
    with pytest.raises(InvalidAnswerError, match=r"answered HTTP/1\.1 429 Too Many Requests"):
        run_with_client(lambda load, client, transport: client.data_received(
            b"HTTP/1.1 429 Too Many Requests\r\n\r\nfull"))


def test_closed_connection_ends_the_run() -> None:
    with pytest.raises(InvalidAnswerError, match="closed a connection"):
        run_with_client(lambda load, client, transport: client.connection_lost(None))
