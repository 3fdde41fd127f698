"""HTTP server of an application with graceful shutdown, and a stand-in on the same socket (`Door`)."""

import logging
import socket
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

SECONDS_TO_WRITE = 2.0  # for a complete response to reach its client during shutdown
SECONDS_TO_DRAIN = 2.0  # for the rest of an unread body: some clients read the response only after sending all of it
BACKLOG = 1024
# aiohttp's handling of bodies. They are decompressed by `read_content`, only after the key is checked.
PROTOCOL: dict[str, Any] = {"auto_decompress": False, "lingering_time": SECONDS_TO_DRAIN}

logger = logging.getLogger(__name__)


class Server:
    def __init__(self, app: web.Application, *, answers_once: bool = False) -> None:
        """With `answers_once`, every connection is closed after its next response."""
        self._answers_once = answers_once
        app.middlewares.insert(0, self._close_after)
        logger.addFilter(is_ours)
        # A client that disconnects cancels its handler, and thereby its request.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=SECONDS_TO_WRITE, logger=logger,
            **PROTOCOL)

    async def open(self, listener: socket.socket) -> int:
        """Serve on a duplicate of this socket, which the caller still owns. Return the port."""
        await self._runner.setup()
        await web.SockSite(self._runner, listener.dup(), backlog=BACKLOG).start()
        return int(self._runner.addresses[0][1])

    async def close_door(self) -> None:
        """Accept no more connections. Open ones may send one more request, which may already be in transit."""
        self._answers_once = True
        for site in self._runner.sites:
            await site.stop()

    @web.middleware
    async def _close_after(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Close the connection after the response if `answers_once`, or if the body was not read to its end: the rest
        may be of any length."""
        answer = await handler(request)
        if self._answers_once or not request.content.is_eof():
            answer.force_close()
        return answer

    async def close(self) -> None:
        await self._runner.cleanup()


def is_ours(record: logging.LogRecord) -> bool:
    """Whether to log a record. Input that is not HTTP is answered with 400 and must not fill the log."""
    return not record.exc_info or not isinstance(record.exc_info[1], HttpProcessingError)


class Door:
    """Stand-in application on the same socket while the main one does not answer."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._servers: list[Server] = []  # one, or none

    async def shut(self, app: web.Application) -> None:
        self._servers.append(Server(app, answers_once=True))
        await self._servers[-1].open(self._listener)

    async def open(self) -> None:
        while self._servers:
            await self._servers.pop().close()


def listen(hostname: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(hostname, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((hostname, port), family=family, backlog=BACKLOG)
