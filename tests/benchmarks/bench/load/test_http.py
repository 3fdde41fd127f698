"""Tests of benchmarks/bench/load/http.py, against bytes as servers may send them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.load.http import Connection, NoAnswer, Server

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=1\r\n world\r\n0\r\n\r\n"
MEASURED = b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\ngone"


class Wire(asyncio.Transport):
    """Transport that only records the bytes written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written += data

    def abort(self) -> None:
        pass


def hear(pieces: Sequence[bytes], *, end: bool = False, error: Exception | None = None) -> tuple[int, bytes, bool]:
    """Return the status, the body, and whether the connection may be reused."""
    async def story() -> tuple[int, bytes, bool]:
        connection, body = Connection(), list[bytes]()
        connection.connection_made(Wire())
        over = connection.ask(b"GET", lambda _, piece, __: body.append(piece))
        for piece in pieces:
            connection.data_received(piece)
        if end or error:
            connection.connection_lost(error)
        return (await over).status, b"".join(body), connection.is_free
    return asyncio.run(story())


def cut(data: bytes, at: set[int]) -> list[bytes]:
    return [data[begin:end] for begin, end in pairwise([0, *sorted(at), len(data)])]


@given(st.sets(st.integers(1, len(CHUNKED) - 1)))
def test_chunks_may_come_in_any_pieces(at: set[int]) -> None:
    assert hear(cut(CHUNKED, at)) == (200, b"hello world", True)


@given(st.sets(st.integers(1, len(MEASURED) - 1)))
def test_a_body_of_known_length_may_come_in_any_pieces(at: set[int]) -> None:
    assert hear(cut(MEASURED, at)) == (404, b"gone", True)


def test_a_body_may_last_until_the_connection_ends() -> None:
    assert hear([b"HTTP/1.0 200 OK\r\n\r\nall", b" of it"], end=True) == (200, b"all of it", False)


def test_a_body_that_breaks_off_is_not_taken_for_a_whole_one() -> None:
    with pytest.raises(NoAnswer, match="before its answer was complete"):
        hear([b"HTTP/1.0 200 OK\r\n\r\nall"], error=ConnectionResetError())


def test_a_head_that_announces_another_is_left_out() -> None:
    assert hear([b"HTTP/1.1 100 Continue\r\n\r\n" + MEASURED]) == (404, b"gone", True)


def test_a_connection_that_the_server_wants_closed_is_not_used_again() -> None:
    assert not hear([MEASURED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")])[2]


@pytest.mark.parametrize("answer", [
    b"SSH-2.0-OpenSSH_9.6\r\n\r\n", CHUNKED.replace(b"5\r\nhello", b"five\r\nhello"), b"x" * 70_000])
def test_what_is_no_http_is_said(answer: bytes) -> None:
    with pytest.raises(NoAnswer, match=r"this is no HTTP|the head of an answer"):
        hear([answer])


def test_an_answer_that_breaks_off_is_said() -> None:
    with pytest.raises(NoAnswer, match="before its answer was complete"):
        hear([CHUNKED[:-8]], end=True)


@pytest.mark.parametrize("url", ["ftp://there", "http://", ":3000"])
def test_an_address_that_is_none_is_said(url: str) -> None:
    with pytest.raises(ValueError, match="--url must be http://HOST:PORT"):
        Server(url)


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="--api-key is for keys") as caught:
        Server("http://me:secret@there")
    assert "secret" not in str(caught.value)


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def with_server(serve: Serve, story: Callable[[Server], Awaitable[None]]) -> None:
    async def told() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = Server(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/root/")
        async with server:
            await story(client)
            client.close()
    asyncio.run(asyncio.wait_for(told(), 10.0))


def test_a_kept_connection_that_is_gone_costs_no_request() -> None:
    connections = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(MEASURED)
        writer.close()

    async def story(client: Server) -> None:
        for _ in range(5):
            head = await client.exchange(client.request("GET", "/", "", b""), lambda *_: None)
            assert (head.status, head.fields) == (404, {"content-length": "4"})
    with_server(once, story)
    assert connections == 5


def test_who_leaves_is_seen_to_leave() -> None:
    left = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"POST /root/generate HTTP/1.1\r\n")
        with suppress(ConnectionResetError):
            await reader.read()
        left.set()
        writer.close()

    async def story(client: Server) -> None:
        asking = asyncio.create_task(client.exchange(client.request("POST", "/generate", "", b""), lambda *_: None))
        await asyncio.wait([asking], timeout=0.05)
        asking.cancel()
        await left.wait()
    with_server(silent, story)


def test_a_port_where_nobody_is_is_said() -> None:
    async def story() -> None:
        await Server("http://127.0.0.1:1").exchange(b"", lambda *_: None)
    with pytest.raises(NoAnswer, match=r"nobody answers at 127\.0\.0\.1:1"):
        asyncio.run(story())
