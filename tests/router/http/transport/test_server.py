"""HTTP server: listening, closing and cancellation."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import ClientConnectorError, ClientSession, web
from yarl import URL

from router.http.transport.server import Door, Server, listen


class Slow:
    """Application with one route, which answers once `may_end` is set."""

    def __init__(self) -> None:
        self.started, self.may_end = asyncio.Event(), asyncio.Event()
        self.cancelled = False
        self.app = web.Application()
        self.app.add_routes([web.get("/", self.answer)])

    async def answer(self, _: web.Request) -> web.Response:
        self.started.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return web.Response(text="done")


def play(
        story: Callable[[Slow, Server, str, ClientSession], Awaitable[None]],
        listener: socket.socket | None = None) -> None:
    async def main() -> None:
        slow = Slow()
        server = Server(slow.app)
        with listener or listen("127.0.0.1", 0) as opened:
            port = await server.open(opened)
        async with ClientSession() as client:
            await story(slow, server, f"http://127.0.0.1:{port}/", client)
        await server.close()
    asyncio.run(main())


async def fetch(client: ClientSession, url: str) -> str:
    async with client.get(url) as response:
        return await response.text()


def test_an_inherited_socket_is_served() -> None:
    async def story(slow: Slow, server: Server, url: str, client: ClientSession) -> None:
        assert url == f"http://127.0.0.1:{port}/"
        slow.may_end.set()
        assert await fetch(client, url) == "done"
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    play(story, listener)


def test_behind_a_closed_door_answers_are_finished_and_nobody_comes_in() -> None:
    async def story(slow: Slow, server: Server, url: str, client: ClientSession) -> None:
        answer = asyncio.create_task(fetch(client, url))
        await slow.started.wait()
        await server.close_door()
        with pytest.raises(ClientConnectorError):
            await fetch(client, url)
        slow.may_end.set()
        assert await answer == "done"
    play(story)


def test_behind_a_closed_door_who_has_a_connection_may_ask_once_more() -> None:
    async def story(slow: Slow, server: Server, url: str, client: ClientSession) -> None:
        slow.may_end.set()
        port = URL(url).port
        connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        assert b"done" in await ask(*connections[1])
        await server.close_door()
        for reader, writer in connections:
            assert b"Connection: close" in await ask(reader, writer)
            assert await reader.read() == b""
            writer.close()
    play(story)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n")
    return await reader.readuntil(b"done")


@pytest.mark.parametrize("sent", [
    b"GET / HTTP/1.1\r\nHost: x\r\nX-Name: \0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
    b"GET / HTTP/9\r\n\r\n", b"\x16\x03\x01\x02\0\r\n\r\n", b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n"])
def test_what_is_no_http_is_told_so_and_fills_no_log(caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    """Regression: each was logged as an error with a traceback, as if the server had failed."""
    async def story(slow: Slow, server: Server, url: str, client: ClientSession) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(url).port)
        writer.write(sent)
        assert b" 400 " in await reader.readline()
        writer.close()
    play(story)
    assert not caplog.records


def test_a_door_answers_at_the_same_port_until_it_is_opened() -> None:
    async def story(slow: Slow, server: Server, url: str, client: ClientSession) -> None:
        shut = web.Application()
        shut.add_routes([web.get("/", closed)])
        slow.may_end.set()
        door = Door(listener)
        await server.close_door()
        await door.shut(shut)
        async with client.get(url) as answer:
            assert (await answer.text(), answer.headers["Connection"]) == ("closed", "close")
        await door.open()
        await door.open()
    with listen("127.0.0.1", 0) as listener:
        play(story, listener.dup())


async def closed(_: web.Request) -> web.Response:
    return web.Response(text="closed")


def test_a_client_that_leaves_cancels_its_handler() -> None:
    async def story(slow: Slow, server: Server, url: str, client: ClientSession) -> None:
        answer = asyncio.create_task(fetch(client, url))
        await slow.started.wait()
        answer.cancel()
        await asyncio.wait([answer])
        await server.close()
        assert slow.cancelled
    play(story)
