"""Listening socket of the server, and the stand-in on it while the main application is not ready or shuts down.

The stand-in answers probes, and `/metrics` during shutdown, and rejects all other requests with 503.
"""

import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from router.api_keys import Keys
from router.config import RouterConfig
from router.http.app import create_door
from router.http.routes.probes import Probes
from router.http.transport.cors import allow_origins
from router.http.transport.generate import Engine
from router.http.transport.metrics import Metrics
from router.http.transport.server import Door, listen


@dataclass(frozen=True, slots=True)
class Entrance:
    listener: socket.socket
    door: Door
    keys: Keys
    origins: tuple[str, ...]
    compat: str

    @classmethod
    def of(cls, config: RouterConfig, listen_fd: int = -1) -> "Entrance":
        """Use the inherited socket `listen_fd`, or else open one. Raises ValueError and OSError."""
        keys = Keys.of(config)
        given = socket.socket(fileno=listen_fd) if listen_fd >= 0 else None
        listener = given or listen(config.hostname, config.port)
        return cls(listener, Door(listener), keys, config.cors_allow_origin, config.compat)

    async def shut(self, engine: Engine, startup: Callable[[], dict[str, Any] | None]) -> None:
        """Start the stand-in during startup, before any request is served."""
        await self._shut(Probes(engine.ailment, startup))

    async def shut_again(self, engine: Engine) -> None:
        """Start the stand-in during shutdown. It serves metrics, too, since requests may still be running."""
        await self._shut(Probes(engine.ailment, lambda: None), Metrics(engine).routes())

    async def _shut(self, probes: Probes, also: Iterable[web.RouteDef] = ()) -> None:
        door = create_door(probes, self.keys, also, compat=self.compat)
        allow_origins(door, self.origins)
        await self.door.shut(door)

    async def close(self) -> None:
        await self.door.open()
        self.listener.close()
