"""An application behind its socket, and another that stands in for it: opening, closing, leaving.

Knows no route and no request.
"""

import asyncio
import socket

from aiohttp import web

SECONDS_TO_WRITE = 2.0  # for an answer that is complete and only has to reach its client
BACKLOG = 1024
TURNS_TO_SIT_DOWN = 3  # of the loop: a connection is accepted, made, listened to


class Server:
    def __init__(self, app: web.Application) -> None:
        # A client that leaves cancels its handler: leaving is cancelling.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=SECONDS_TO_WRITE)

    async def open(self, listener: socket.socket) -> int:
        """Answer whoever comes to this socket, which stays its owner's; returns the port."""
        await self._runner.setup()
        await web.SockSite(self._runner, listener.dup(), backlog=BACKLOG).start()
        return int(self._runner.addresses[0][1])

    async def close_door(self) -> None:
        """Take no more connections; those that are open close after the answer they wait for."""
        for site in self._runner.sites:
            await site.stop()
        # aiohttp would not hear any more of who was let in this moment and has not begun to be listened to.
        for _ in range(TURNS_TO_SIT_DOWN):
            await asyncio.sleep(0)
        if self._runner.server:
            self._runner.server.pre_shutdown()

    async def close(self) -> None:
        await self._runner.cleanup()


class Door:
    """An application that answers at the same socket while the real one does not."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._servers: list[Server] = []  # one, or none

    async def shut(self, app: web.Application) -> None:
        self._servers.append(Server(app))
        await self._servers[-1].open(self._listener)

    async def open(self) -> None:
        while self._servers:
            await self._servers.pop().close()


def listen(hostname: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(hostname, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((hostname, port), family=family, backlog=BACKLOG)
