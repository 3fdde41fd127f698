"""`GET /metrics` for Prometheus, and what became of each request, counted once it is over.

A request is counted when its dialect asked who its caller is, and again when it was answered or failed. Knows neither
the metrics nor how failures come about.
"""

import asyncio
from typing import Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from router.errors import (
    Cancelled,
    GenerationFailed,
    InvalidRequest,
    NotReady,
    Overloaded,
    TemplateFailed,
    TimedOut,
    ToolsFailed,
)
from router.http.headers import CAME, REQUEST_ID
from router.meters import CONTENT_TYPE
from router.tally import RequestTally, Tally

# How the answer of a request ended that had begun already.
FAILURE = web.RequestKey("failure", BaseException)
ERRORS: dict[type[BaseException], str] = {
    InvalidRequest: "validation",
    web.HTTPClientError: "validation",
    ToolsFailed: "validation",
    TemplateFailed: "template",
    Overloaded: "overloaded",
    NotReady: "overloaded",
    GenerationFailed: "generation",
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
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/metrics", self.metrics)]

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._engine.metrics().encode(), headers={"Content-Type": CONTENT_TYPE})


def count_requests(tally: RequestTally) -> Middleware:
    @web.middleware
    async def count_request(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[CAME] = tally.came
        try:
            answer = await handler(request)
        except BaseException as error:
            count_end(request, tally, error)
            raise
        count_end(request, tally, request.get(FAILURE))
        return answer

    return count_request


def count_end(request: web.Request, tally: RequestTally, failure: BaseException | None) -> None:
    """Only of a request that was counted when it came."""
    if REQUEST_ID not in request:
        return
    if failure is None:
        tally.succeeded.add()
    else:
        tally.failed[err_of(failure)].add()


def err_of(failure: BaseException) -> str:
    """As text-generation-inference calls it. What is nobody's fault but ours leaves an answer incomplete."""
    return next((err for kind, err in ERRORS.items() if isinstance(failure, kind)), "incomplete")
