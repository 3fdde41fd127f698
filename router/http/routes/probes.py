"""Health probes: liveness, readiness, and progress of the startup.

These routes are open without a key, so they reveal nothing about any tenant or request.
"""

import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from router.http.transport.errors import Told

RETRY_AFTER = {"Retry-After": "1"}


class Probes:
    def __init__(self, ailment: Callable[[], str], startup: Callable[[], dict[str, Any] | None]) -> None:
        """`ailment` returns why the server is not ready, empty if it is; `startup` returns the progress of the startup,
        None once it is complete."""
        self.ailment = ailment
        self._startup = startup

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self.health),
            web.get("/", self.health),
            web.get("/ping", self.health),
            web.get("/ready", self.ready),
            web.get("/live", self.live),
            web.get("/startup", self.startup),
        ]

    async def health(self, _: web.Request) -> web.Response:
        """Answer in text-generation-inference's format."""
        if not self.ailment():
            return web.Response()
        return Told(503, "healthcheck", "unhealthy").response()

    async def ready(self, _: web.Request) -> web.Response:
        if not (ailment := self.ailment()):
            return answer(200, {"status": "ready"})
        return answer(503, {"error": ailment, "error_type": "not_ready"})

    async def live(self, _: web.Request) -> web.Response:
        """Answer 200: a process that answers is alive."""
        return answer(200, {"status": "alive"})

    async def startup(self, _: web.Request) -> web.Response:
        stage = self._startup()
        return answer(200, {"phase": "ready"}) if stage is None else answer(503, stage)


def answer(status: int, told: dict[str, Any]) -> web.Response:
    return web.Response(status=status, body=json.dumps(told).encode(), content_type="application/json",
                        headers={} if status == 200 else RETRY_AFTER)

