"""`GET /metrics` for Prometheus."""

from typing import Any

from aiohttp import web

from router.http.transport.body import json_response
from router.http.transport.services import EngineClient
from router.telemetry.instruments import CONTENT_TYPE


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
