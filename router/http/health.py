"""What probes ask: does it live, is it ready, how far has its start come.

Knows nothing of how health is found out. All of these routes are open to everybody, so they tell nothing of anybody.
"""

import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from router.http.errors import Told

RETRY_AFTER = {"Retry-After": "1"}


class Probes:
    def __init__(self, ailment: Callable[[], str], startup: Callable[[], dict[str, Any] | None]) -> None:
        """Why nobody should be sent here, empty if all is well; how far the start has come, None once it is over."""
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
        """As text-generation-inference says it."""
        if not self.ailment():
            return web.Response()
        return Told(503, "healthcheck", "unhealthy").response()

    async def ready(self, _: web.Request) -> web.Response:
        if not (ailment := self.ailment()):
            return answer(200, {"status": "ready"})
        return answer(503, {"error": ailment, "error_type": "not_ready"})

    async def live(self, _: web.Request) -> web.Response:
        """Who answers this, lives."""
        return answer(200, {"status": "alive"})

    async def startup(self, _: web.Request) -> web.Response:
        stage = self._startup()
        return answer(200, {"phase": "ready"}) if stage is None else answer(503, stage)


def answer(status: int, told: dict[str, Any]) -> web.Response:
    return web.Response(status=status, body=json.dumps(told).encode(), content_type="application/json",
                        headers={} if status == 200 else RETRY_AFTER)

