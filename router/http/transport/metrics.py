"""`GET /metrics` for Prometheus, and the middleware that counts requests and their outcomes.

A request is counted when its handler calls `Caller.of`, and again when it is answered or fails.
"""

import asyncio
from typing import Any, Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from router.errors import (
    AdapterFailed,
    AdapterMissing,
    Cancelled,
    ClassificationFailed,
    EmbeddingFailed,
    GenerationFailed,
    InvalidRequest,
    NotReady,
    Overloaded,
    TemplateFailed,
    TimedOut,
    ToolsFailed,
)
from router.http.transport.body import json_answer
from router.http.transport.headers import CAME, REQUEST_ID
from router.telemetry.counters import RequestTally, Tally
from router.telemetry.instruments import CONTENT_TYPE

# Type of the exception from which a response was made. The exception itself would reference the request through its
# traceback, and both would stay in memory until the garbage collector runs.
FAILURE = web.RequestKey("failure", type)
ERRORS: dict[type[BaseException], str] = {
    InvalidRequest: "validation",
    web.HTTPClientError: "validation",
    ToolsFailed: "validation",
    TemplateFailed: "template",
    Overloaded: "overloaded",
    NotReady: "overloaded",
    EmbeddingFailed: "embedding_failure",
    ClassificationFailed: "classification_failure",
    GenerationFailed: "generation",
    AdapterMissing: "download_adapter",
    AdapterFailed: "download_adapter",
    TimedOut: "timeout",
    Cancelled: "dropped",
    ConnectionError: "dropped",
    asyncio.CancelledError: "dropped",
}


class Engine(Protocol):
    @property
    def tally(self) -> Tally: ...

    def metrics(self) -> str: ...


class Metrics:
    def __init__(self, engine: Engine, *, takes_json: bool = False) -> None:
        """With `takes_json`, `Accept: application/json` gets the metrics as JSON, as in LoRAX."""
        self._engine = engine
        self._takes_json = takes_json

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/metrics", self.metrics)]

    async def metrics(self, request: web.Request) -> web.Response:
        if self._takes_json and request.headers.get("Accept") == "application/json":
            return json_answer(as_json(self._engine.metrics()))
        return web.Response(body=self._engine.metrics().encode(), headers={"Content-Type": CONTENT_TYPE})


def as_json(page: str) -> dict[str, Any]:
    """Return each family with its type and its samples, keyed as in the text format."""
    told: dict[str, Any] = {}
    data: list[dict[str, Any]] = []
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            told[name] = {"type": kind, "data": (data := [])}
        elif not line.startswith("#"):
            key, _, value = line.rpartition(" ")
            data.append({"key": key, "value": float(value)})
    return told


def count_requests(tally: RequestTally) -> Middleware:
    @web.middleware
    async def count_request(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[CAME] = tally.came
        try:
            answer = await handler(request)
        except BaseException as error:
            count_end(request, tally, type(error))
            raise
        count_end(request, tally, request.get(FAILURE))
        return answer

    return count_request


def count_end(request: web.Request, tally: RequestTally, failure: type[BaseException] | None) -> None:
    """Count the outcome of a request, if its arrival was counted."""
    if REQUEST_ID not in request:
        return
    if failure is None:
        tally.succeeded.add()
    else:
        tally.failed[err_of(failure)].add()


def err_of(failure: type[BaseException]) -> str:
    """Return the label `err` of a failure as text-generation-inference names it, or else LoRAX; an unexpected
    exception is `incomplete`."""
    return next((err for kind, err in ERRORS.items() if issubclass(failure, kind)), "incomplete")
