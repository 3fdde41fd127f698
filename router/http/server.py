"""An application behind its socket, and another that stands in for it: opening, closing, leaving.

Knows no route and no request.
"""

import logging
import socket
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

SECONDS_TO_WRITE = 2.0  # for an answer that is complete and only has to reach its client
SECONDS_TO_DRAIN = 2.0  # for the rest of a body that nobody reads: a client may have to send it before it reads why
BACKLOG = 1024
# How aiohttp deals with bodies. What is compressed stays so until whoever sent it is let in.
PROTOCOL: dict[str, Any] = {"auto_decompress": False, "lingering_time": SECONDS_TO_DRAIN}

logger = logging.getLogger(__name__)


class Server:
    def __init__(self, app: web.Application, *, answers_once: bool = False) -> None:
        """`answers_once`: no connection stays after its next answer."""
        self._answers_once = answers_once
        app.middlewares.insert(0, self._close_after)
        logger.addFilter(is_ours)
        # A client that leaves cancels its handler: leaving is cancelling.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=SECONDS_TO_WRITE, logger=logger,
            **PROTOCOL)

    async def open(self, listener: socket.socket) -> int:
        """Answer whoever comes to this socket, which stays its owner's; returns the port."""
        await self._runner.setup()
        await web.SockSite(self._runner, listener.dup(), backlog=BACKLOG).start()
        return int(self._runner.addresses[0][1])

    async def close_door(self) -> None:
        """Take no more connections. Who has one may ask once more: the question may be on its way."""
        self._answers_once = True
        for site in self._runner.sites:
            await site.stop()

    @web.middleware
    async def _close_after(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """After an answer to a body that was not read to its end, too: that may be of any length."""
        answer = await handler(request)
        if self._answers_once or not request.content.is_eof():
            answer.force_close()
        return answer

    async def close(self) -> None:
        await self._runner.cleanup()


def is_ours(record: logging.LogRecord) -> bool:
    """What is no HTTP is answered with 400; whoever sends it shall not fill our log."""
    return not record.exc_info or not isinstance(record.exc_info[1], HttpProcessingError)


class Door:
    """An application that answers at the same socket while the real one does not."""

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
