"""`GET /metrics` for Prometheus, and what became of each request, counted once it is over.

A request is counted when its dialect asked who its caller is, and again when it was answered or failed. Knows neither
the metrics nor how failures come about.
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
from router.http.body import json_answer
from router.http.headers import CAME, REQUEST_ID
from router.meters import CONTENT_TYPE
from router.tally import RequestTally, Tally

# What kind of failure a request ended with that was answered all the same. The failure itself would hold on to the
# request, by way of its traceback, and both would wait for the collector.
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
        """`takes_json`: who asks for JSON gets the page as LoRAX has it then."""
        self._engine = engine
        self._takes_json = takes_json

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/metrics", self.metrics)]

    async def metrics(self, request: web.Request) -> web.Response:
        if self._takes_json and request.headers.get("Accept") == "application/json":
            return json_answer(as_json(self._engine.metrics()))
        return web.Response(body=self._engine.metrics().encode(), headers={"Content-Type": CONTENT_TYPE})


def as_json(page: str) -> dict[str, Any]:
    """Each family with its type, and its samples as they are written."""
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
    """Only of a request that was counted when it came."""
    if REQUEST_ID not in request:
        return
    if failure is None:
        tally.succeeded.add()
    else:
        tally.failed[err_of(failure)].add()


def err_of(failure: type[BaseException]) -> str:
    """As text-generation-inference calls it, or else LoRAX. What is nobody's fault but ours leaves an answer
    incomplete."""
    return next((err for kind, err in ERRORS.items() if issubclass(failure, kind)), "incomplete")
