"""Health probes (liveness, readiness, progress of the startup) and `GET /metrics` for Prometheus.

These routes are open without a key, so they reveal nothing about any tenant or request.
"""

import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from router.http.transport.body import json_response
from router.http.transport.errors import TgiErrorReply
from router.http.transport.services import EngineClient
from router.telemetry.instruments import CONTENT_TYPE

RETRY_AFTER_HEADERS = {"Retry-After": "1"}


class ProbeRoutes:
    """Handlers of `/health`, `/ready`, `/live` and `/startup`."""

    def __init__(self, why_unavailable: Callable[[], str],
                 get_startup_progress: Callable[[], dict[str, Any] | None]) -> None:
        """`why_unavailable` returns why the server is not ready, empty if it is; `get_startup_progress` returns the
        progress of the startup, None once it is complete."""
        self.why_unavailable = why_unavailable
        self._get_startup_progress = get_startup_progress

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
        if not self.why_unavailable():
            return web.Response()
        return TgiErrorReply(503, "healthcheck", "unhealthy").to_response()

    async def ready(self, _: web.Request) -> web.Response:
        if not (reason := self.why_unavailable()):
            return probe_response(200, {"status": "ready"})
        return probe_response(503, {"error": reason, "error_type": "not_ready"})

    async def live(self, _: web.Request) -> web.Response:
        """Answer 200: a process that answers is alive."""
        return probe_response(200, {"status": "alive"})

    async def startup(self, _: web.Request) -> web.Response:
        progress = self._get_startup_progress()
        return probe_response(200, {"phase": "ready"}) if progress is None else probe_response(503, progress)


def probe_response(status: int, value: dict[str, Any]) -> web.Response:
    return web.Response(status=status, body=json.dumps(value).encode(), content_type="application/json",
                        headers={} if status == 200 else RETRY_AFTER_HEADERS)


class MetricsRoutes:
    """Handler of `/metrics`."""

    def __init__(self, engine: EngineClient, *, allows_json: bool = False) -> None:
        """With `allows_json`, `Accept: application/json` gets the metrics as JSON, as in LoRAX."""
        self._engine = engine
        self._allows_json = allows_json

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/metrics", self.metrics)]

    async def metrics(self, request: web.Request) -> web.Response:
        if self._allows_json and request.headers.get("Accept") == "application/json":
            return json_response(metrics_page_to_json(self._engine.metrics_page()))
        return web.Response(body=self._engine.metrics_page().encode(), headers={"Content-Type": CONTENT_TYPE})


def metrics_page_to_json(page: str) -> dict[str, Any]:
    """Return each family with its type and its samples, keyed as in the text format."""
    families: dict[str, Any] = {}
    samples: list[dict[str, Any]] = []
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            families[name] = {"type": kind, "data": (samples := [])}
        elif not line.startswith("#"):
            key, _, value = line.rpartition(" ")
            samples.append({"key": key, "value": float(value)})
    return families
