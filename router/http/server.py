"""HTTP server of an application with graceful shutdown, and the stand-in on the same socket while the main application
is not ready or shuts down.

The stand-in answers probes, and `/metrics` during shutdown, and rejects all other requests with 503.
"""

import logging
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from router.api_keys import ApiKeys
from router.config import RouterConfig
from router.http.app import create_stand_in_app
from router.http.routes.probes import MetricsRoutes, ProbeRoutes
from router.http.transport.cors import allow_cors_origins
from router.http.transport.services import EngineClient

SHUTDOWN_WRITE_SECONDS = 2.0  # for a complete response to reach its client during shutdown
# for the rest of an unread body: some clients read the response only after sending all of it
UNREAD_BODY_DRAIN_SECONDS = 2.0
BACKLOG = 1024
# aiohttp's handling of bodies. They are decompressed by `read_content`, only after the key is checked.
PROTOCOL_OPTIONS: dict[str, Any] = {"auto_decompress": False, "lingering_time": UNREAD_BODY_DRAIN_SECONDS}

logger = logging.getLogger(__name__)


class HttpServer:
    """aiohttp server of one application. On shutdown it first stops accepting connections, then closes the open ones
    after their response.
    """

    def __init__(self, app: web.Application, *, close_after_response: bool = False) -> None:
        """With `close_after_response`, every connection is closed after its next response."""
        self._close_after_response = close_after_response
        app.middlewares.insert(0, self._close_connection_middleware)
        logger.addFilter(should_log_record)
        # A client that disconnects cancels its handler, and thereby its request.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=SHUTDOWN_WRITE_SECONDS, logger=logger,
            **PROTOCOL_OPTIONS)

    async def start(self, listening_socket: socket.socket) -> int:
        """Serve on a duplicate of this socket, which the caller still owns. Return the port."""
        await self._runner.setup()
        await web.SockSite(self._runner, listening_socket.dup(), backlog=BACKLOG).start()
        return int(self._runner.addresses[0][1])

    async def stop_accepting(self) -> None:
        """Accept no more connections. Open ones may send one more request, which may already be in transit."""
        self._close_after_response = True
        for site in self._runner.sites:
            await site.stop()

    @web.middleware
    async def _close_connection_middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Close the connection after the response if `close_after_response`, or if the body was not read to its end:
        the rest may be of any length."""
        response = await handler(request)
        if self._close_after_response or not request.content.is_eof():
            response.force_close()
        return response

    async def close(self) -> None:
        await self._runner.cleanup()


def should_log_record(record: logging.LogRecord) -> bool:
    """Whether to log a record. Input that is not HTTP is answered with 400 and must not fill the log."""
    return not record.exc_info or not isinstance(record.exc_info[1], HttpProcessingError)


@dataclass(frozen=True, slots=True)
class StandInServer:
    """Listening socket of the router, and the server that answers probes on it while the main application is not ready
    or shuts down.
    """

    listening_socket: socket.socket
    api_keys: ApiKeys
    cors_origins: tuple[str, ...]
    compat: str
    _servers: list[HttpServer] = field(default_factory=list)  # one, or none

    @classmethod
    def from_config(cls, config: RouterConfig, listen_fd: int = -1) -> "StandInServer":
        """Use the inherited socket `listen_fd`, or else open one. Raises ValueError and OSError."""
        api_keys = ApiKeys.from_config(config)
        inherited_socket = socket.socket(fileno=listen_fd) if listen_fd >= 0 else None
        listening_socket = inherited_socket or create_listening_socket(config.hostname, config.port)
        return cls(listening_socket, api_keys, config.cors_allow_origin, config.compat)

    async def start_during_startup(self, engine: EngineClient,
                                   get_startup_progress: Callable[[], dict[str, Any] | None]) -> None:
        """Start the stand-in during startup, before any request is served."""
        await self._start(ProbeRoutes(engine.why_unavailable, get_startup_progress))

    async def start_during_shutdown(self, engine: EngineClient) -> None:
        """Start the stand-in during shutdown. It serves metrics, too, since requests may still be running."""
        await self._start(ProbeRoutes(engine.why_unavailable, lambda: None), MetricsRoutes(engine).routes())

    async def _start(self, probes: ProbeRoutes, extra_routes: Iterable[web.RouteDef] = ()) -> None:
        stand_in_app = create_stand_in_app(probes, self.api_keys, extra_routes, compat=self.compat)
        allow_cors_origins(stand_in_app, self.cors_origins)
        await self.start(stand_in_app)

    async def start(self, stand_in_app: web.Application) -> None:
        self._servers.append(HttpServer(stand_in_app, close_after_response=True))
        await self._servers[-1].start(self.listening_socket)

    async def stop(self) -> None:
        """Stop the stand-in. The socket stays open."""
        while self._servers:
            await self._servers.pop().close()

    async def close(self) -> None:
        await self.stop()
        self.listening_socket.close()


def create_listening_socket(hostname: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(hostname, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((hostname, port), family=family, backlog=BACKLOG)
