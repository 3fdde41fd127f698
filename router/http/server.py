"""The application behind its socket: opening, closing the door, leaving. Knows no route and no request."""

import socket

from aiohttp import web

SECONDS_TO_WRITE = 2.0  # for an answer that is complete and only has to reach its client
BACKLOG = 1024


class Server:
    def __init__(self, app: web.Application) -> None:
        # A client that leaves cancels its handler: leaving is cancelling.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=SECONDS_TO_WRITE)

    async def open(self, hostname: str, port: int, listen_fd: int = -1) -> int:
        """Listen on the inherited socket, or on one of our own; returns the port."""
        await self._runner.setup()
        site: web.BaseSite
        if listen_fd >= 0:
            site = web.SockSite(self._runner, socket.socket(fileno=listen_fd), backlog=BACKLOG)
        else:
            site = web.TCPSite(self._runner, hostname, port, backlog=BACKLOG)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def close_door(self) -> None:
        """Take no more connections; those that are open close after the answer they wait for."""
        for site in self._runner.sites:
            await site.stop()
        if self._runner.server:
            self._runner.server.pre_shutdown()

    async def close(self) -> None:
        await self._runner.cleanup()
