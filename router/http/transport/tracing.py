"""Tracing middleware: one span per request.

`RequestContext.from_request` begins the span, so only requests that run the model have one; the middleware ends it.
"""

import asyncio

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from router.errors import Cancelled, ChatTemplateFailed, InvalidRequest, InvalidTools, Overloaded, TimedOut
from router.http.transport.metrics import error_label
from router.http.transport.request_context import FAILURE_TYPE, REQUEST_SPAN, SPAN_FACTORY
from router.telemetry.spans import RequestSpanFactory

# Failures caused by clients: their spans are not marked as failed.
CLIENT_ERRORS = (InvalidRequest, InvalidTools, ChatTemplateFailed, TimedOut, Overloaded, web.HTTPClientError, Cancelled,
                 ConnectionError, asyncio.CancelledError)
DROPPED_LABEL = "dropped"  # the connection ended before the response was complete, so the span has no status


def create_tracing_middleware(span_factory: RequestSpanFactory) -> Middleware:
    """Return the tracing middleware. It goes outside the one that turns exceptions into error responses."""
    @web.middleware
    async def trace_request(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[SPAN_FACTORY] = span_factory
        try:
            response = await handler(request)
        except BaseException as error:
            end_request_span(request, None, type(error))
            raise
        end_request_span(request, response, request.get(FAILURE_TYPE))
        return response

    return trace_request


def end_request_span(request: web.Request, response: web.StreamResponse | None,
                     failure_type: type[BaseException] | None) -> None:
    if (request_span := request.get(REQUEST_SPAN)) is None:
        return
    attributes: dict[str, str | int | bool] = {"http.request.method": request.method, "url.path": request.path}
    if failure_type is not None:
        attributes["error.type"] = error_label(failure_type)
    if response is not None and attributes.get("error.type") != DROPPED_LABEL:
        attributes["http.response.status_code"] = response.status
    if response is not None and not isinstance(response, web.Response):
        attributes["gen_ai.request.stream"] = True
    request_span.end_request(
        attributes, is_server_error=failure_type is not None and not issubclass(failure_type, CLIENT_ERRORS))
