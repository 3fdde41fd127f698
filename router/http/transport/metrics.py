"""`GET /metrics` for Prometheus, and the labels of failures in it."""

import asyncio
from typing import Any, Protocol

from aiohttp import web

from router.errors import (
    AdapterLoadFailed,
    AdapterNotFound,
    Cancelled,
    ChatTemplateFailed,
    ClassificationFailed,
    EmbeddingFailed,
    GenerationFailed,
    InvalidRequest,
    InvalidTools,
    NotReady,
    Overloaded,
    TimedOut,
)
from router.http.transport.body import json_response
from router.telemetry.instruments import CONTENT_TYPE
from router.telemetry.server_metrics import ServerMetrics

ERROR_LABELS: dict[type[BaseException], str] = {
    InvalidRequest: "validation",
    web.HTTPClientError: "validation",
    InvalidTools: "validation",
    ChatTemplateFailed: "template",
    Overloaded: "overloaded",
    NotReady: "overloaded",
    EmbeddingFailed: "embedding_failure",
    ClassificationFailed: "classification_failure",
    GenerationFailed: "generation",
    AdapterNotFound: "download_adapter",
    AdapterLoadFailed: "download_adapter",
    TimedOut: "timeout",
    Cancelled: "dropped",
    ConnectionError: "dropped",
    asyncio.CancelledError: "dropped",
}


class MetricsSource(Protocol):
    """Interface of what `/metrics` serves: the metrics, and their page in Prometheus' text format."""

    @property
    def server_metrics(self) -> ServerMetrics: ...

    def metrics_page(self) -> str: ...


class MetricsRoutes:
    """Handler of `/metrics`."""

    def __init__(self, engine: MetricsSource, *, allows_json: bool = False) -> None:
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


def error_label(failure_type: type[BaseException]) -> str:
    """Return the label `err` of a failure as text-generation-inference names it, or else LoRAX; an unexpected
    exception is `incomplete`."""
    return next((err for kind, err in ERROR_LABELS.items() if issubclass(failure_type, kind)), "incomplete")
