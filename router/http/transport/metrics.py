"""`GET /metrics` for Prometheus, and the middleware that counts requests and their outcomes.

A request is counted when its handler calls `RequestContext.from_request`, and again when it is answered or fails.
"""

import asyncio
from typing import Any, Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

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
from router.http.transport.request_context import REQUEST_COUNTER, REQUEST_ID
from router.telemetry.instruments import CONTENT_TYPE
from router.telemetry.server_metrics import RequestMetrics, ServerMetrics

# Type of the exception from which a response was made. The exception itself would reference the request through its
# traceback, and both would stay in memory until the garbage collector runs.
FAILURE_TYPE = web.RequestKey("failure", type)
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


def create_counting_middleware(request_metrics: RequestMetrics) -> Middleware:
    @web.middleware
    async def count_request(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[REQUEST_COUNTER] = request_metrics.num_received
        try:
            response = await handler(request)
        except BaseException as error:
            count_request_outcome(request, request_metrics, type(error))
            raise
        count_request_outcome(request, request_metrics, request.get(FAILURE_TYPE))
        return response

    return count_request


def count_request_outcome(request: web.Request, request_metrics: RequestMetrics,
                          failure_type: type[BaseException] | None) -> None:
    """Count the outcome of a request, if its arrival was counted."""
    if REQUEST_ID not in request:
        return
    if failure_type is None:
        request_metrics.num_succeeded.add()
    else:
        request_metrics.num_failed[error_label(failure_type)].add()


def error_label(failure_type: type[BaseException]) -> str:
    """Return the label `err` of a failure as text-generation-inference names it, or else LoRAX; an unexpected
    exception is `incomplete`."""
    return next((err for kind, err in ERROR_LABELS.items() if issubclass(failure_type, kind)), "incomplete")
