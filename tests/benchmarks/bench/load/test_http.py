"""Tests of benchmarks/bench/load/http.py, against bytes as servers may send them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.load.http import HttpConnection, HttpConnectionPool, RequestFailedError

CHUNKED_RESPONSE = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=1\r\n world\r\n0\r\n\r\n"
SIZED_RESPONSE = b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\ngone"


class RecordingTransport(asyncio.Transport):
    """Transport that only records the bytes written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written += data

    def abort(self) -> None:
        pass


def receive(pieces: Sequence[bytes], *, closes: bool = False,
            error: Exception | None = None) -> tuple[int, bytes, bool]:
    """Return the status, the body, and whether the connection may be reused."""
    async def scenario() -> tuple[int, bytes, bool]:
        connection, body = HttpConnection(), list[bytes]()
        connection.connection_made(RecordingTransport())
        response = connection.send(b"GET", lambda _, piece, __: body.append(piece))
        for piece in pieces:
            connection.data_received(piece)
        if closes or error:
            connection.connection_lost(error)
        return (await response).status, b"".join(body), connection.is_reusable
    return asyncio.run(scenario())


def split_at(data: bytes, positions: set[int]) -> list[bytes]:
    return [data[begin:end] for begin, end in pairwise([0, *sorted(positions), len(data)])]


@given(st.sets(st.integers(1, len(CHUNKED_RESPONSE) - 1)))
def test_chunked_body_may_arrive_in_any_pieces(at: set[int]) -> None:
    assert receive(split_at(CHUNKED_RESPONSE, at)) == (200, b"hello world", True)


@given(st.sets(st.integers(1, len(SIZED_RESPONSE) - 1)))
def test_sized_body_may_arrive_in_any_pieces(at: set[int]) -> None:
    assert receive(split_at(SIZED_RESPONSE, at)) == (404, b"gone", True)


def test_body_may_last_until_the_connection_closes() -> None:
    assert receive([b"HTTP/1.0 200 OK\r\n\r\nall", b" of it"], closes=True) == (200, b"all of it", False)


def test_broken_body_is_not_taken_for_complete() -> None:
    with pytest.raises(RequestFailedError, match="before its answer was complete"):
        receive([b"HTTP/1.0 200 OK\r\n\r\nall"], error=ConnectionResetError())


def test_interim_response_is_skipped() -> None:
    assert receive([b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED_RESPONSE]) == (404, b"gone", True)


def test_connection_with_a_close_header_is_not_reused() -> None:
    assert not receive([SIZED_RESPONSE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")])[2]


@pytest.mark.parametrize("answer", [
    b"SSH-2.0-OpenSSH_9.6\r\n\r\n", CHUNKED_RESPONSE.replace(b"5\r\nhello", b"five\r\nhello"), b"x" * 70_000])
def test_invalid_http_is_reported(answer: bytes) -> None:
    with pytest.raises(RequestFailedError, match=r"this is no HTTP|the head of an answer"):
        receive([answer])


def test_incomplete_answer_is_reported() -> None:
    with pytest.raises(RequestFailedError, match="before its answer was complete"):
        receive([CHUNKED_RESPONSE[:-8]], closes=True)


@pytest.mark.parametrize("url", ["ftp://there", "http://", ":3000"])
def test_invalid_url_is_reported(url: str) -> None:
    with pytest.raises(ValueError, match="--url must be http://HOST:PORT"):
        HttpConnectionPool(url)


def test_password_in_a_url_is_rejected_and_not_shown() -> None:
    with pytest.raises(ValueError, match="--api-key is for keys") as error:
        HttpConnectionPool("http://me:secret@there")
    assert "secret" not in str(error.value)


ServeConnection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def run_with_server(serve: ServeConnection, scenario: Callable[[HttpConnectionPool], Awaitable[None]]) -> None:
    async def run_scenario() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = HttpConnectionPool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/root/")
        async with server:
            await scenario(client)
            client.close()
    asyncio.run(asyncio.wait_for(run_scenario(), 10.0))


def test_closed_kept_connection_costs_no_request() -> None:
    connections = 0

    async def answer_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SIZED_RESPONSE)
        writer.close()

    async def scenario(client: HttpConnectionPool) -> None:
        for _ in range(5):
            head = await client.exchange(client.build_request("GET", "/", "", b""), lambda *_: None)
            assert (head.status, head.headers) == (404, {"content-length": "4"})
    run_with_server(answer_and_close, scenario)
    assert connections == 5


def test_cancelled_request_closes_its_connection() -> None:
    left = asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"POST /root/generate HTTP/1.1\r\n")
        with suppress(ConnectionResetError):
            await reader.read()
        left.set()
        writer.close()

    async def scenario(client: HttpConnectionPool) -> None:
        exchange_task = asyncio.create_task(client.exchange(client.build_request("POST", "/generate", "", b""),
                                                            lambda *_: None))
        await asyncio.wait([exchange_task], timeout=0.05)
        exchange_task.cancel()
        await left.wait()
    run_with_server(never_answer, scenario)


def test_refused_connection_is_reported() -> None:
    async def scenario() -> None:
        await HttpConnectionPool("http://127.0.0.1:1").exchange(b"", lambda *_: None)
    with pytest.raises(RequestFailedError, match=r"nobody answers at 127\.0\.0\.1:1"):
        asyncio.run(scenario())
