"""The application behind its socket."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import ClientConnectorError, ClientSession, web

from router.http.server import Server


class Slow:
    """An application with one route, which answers when it may."""

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


def play(story: Callable[[Slow, Server, str, ClientSession], Awaitable[None]], listen_fd: int = -1) -> None:
    async def main() -> None:
        slow = Slow()
        server = Server(slow.app)
        port = await server.open("127.0.0.1", 0, listen_fd)
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
    play(story, listener.detach())


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


def test_a_client_that_leaves_cancels_its_handler() -> None:
    async def story(slow: Slow, server: Server, url: str, client: ClientSession) -> None:
        answer = asyncio.create_task(fetch(client, url))
        await slow.started.wait()
        answer.cancel()
        await asyncio.wait([answer])
        await server.close()
        assert slow.cancelled
    play(story)
