"""Tracing middleware: one span per request.

`Caller.of` begins the span, so only requests that run the model have one; the middleware ends it.
"""

import asyncio

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from router.errors import Cancelled, InvalidRequest, Overloaded, TemplateFailed, TimedOut, ToolsFailed
from router.http.transport.headers import SPANS, TRACED
from router.http.transport.metrics import FAILURE, err_of
from router.telemetry.spans import Spans

# Failures caused by clients: their spans are not marked as failed.
THEIRS = (InvalidRequest, ToolsFailed, TemplateFailed, TimedOut, Overloaded, web.HTTPClientError, Cancelled,
          ConnectionError, asyncio.CancelledError)
DROPPED = "dropped"  # the connection ended before the response was complete, so the span has no status


def trace_requests(spans: Spans) -> Middleware:
    """Return the tracing middleware. It goes outside the one that turns exceptions into error responses."""
    @web.middleware
    async def trace_request(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[SPANS] = spans
        try:
            answer = await handler(request)
        except BaseException as error:
            end_span(request, None, type(error))
            raise
        end_span(request, answer, request.get(FAILURE))
        return answer

    return trace_request


def end_span(request: web.Request, answer: web.StreamResponse | None, failure: type[BaseException] | None) -> None:
    if (traced := request.get(TRACED)) is None:
        return
    about: dict[str, str | int | bool] = {"http.request.method": request.method, "url.path": request.path}
    if failure is not None:
        about["error.type"] = err_of(failure)
    if answer is not None and about.get("error.type") != DROPPED:
        about["http.response.status_code"] = answer.status
    if answer is not None and not isinstance(answer, web.Response):
        about["gen_ai.request.stream"] = True
    traced.end(about, failed=failure is not None and not issubclass(failure, THEIRS))
