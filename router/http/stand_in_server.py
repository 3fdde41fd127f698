"""Listening socket of the server, and the stand-in on it while the main application is not ready or shuts down.

The stand-in answers probes, and `/metrics` during shutdown, and rejects all other requests with 503.
"""

import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from router.api_keys import ApiKeys
from router.config import RouterConfig
from router.http.app import create_stand_in_app
from router.http.routes.probes import ProbeRoutes
from router.http.transport.cors import allow_cors_origins
from router.http.transport.metrics import MetricsRoutes
from router.http.transport.server import StandInRunner, create_listening_socket
from router.http.transport.services import EngineClient


@dataclass(frozen=True, slots=True)
class StandInServer:
    """Listening socket of the router, and the server that answers probes on it while the main application is not ready
    or shuts down.
    """

    listening_socket: socket.socket
    runner: StandInRunner
    api_keys: ApiKeys
    cors_origins: tuple[str, ...]
    compat: str

    @classmethod
    def from_config(cls, config: RouterConfig, listen_fd: int = -1) -> "StandInServer":
        """Use the inherited socket `listen_fd`, or else open one. Raises ValueError and OSError."""
        api_keys = ApiKeys.from_config(config)
        inherited_socket = socket.socket(fileno=listen_fd) if listen_fd >= 0 else None
        listening_socket = inherited_socket or create_listening_socket(config.hostname, config.port)
        return cls(listening_socket, StandInRunner(listening_socket), api_keys, config.cors_allow_origin, config.compat)

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
        await self.runner.start(stand_in_app)

    async def close(self) -> None:
        await self.runner.stop()
        self.listening_socket.close()
