"""Context of an HTTP request: tenant, id, arrival time, deadline and tracing span."""

import re
import secrets
from dataclasses import dataclass, field, replace
from time import monotonic as clock
from typing import Protocol

from aiohttp import web

from router.errors import InvalidRequest
from router.http.transport.auth import SOURCE_TOKEN, TENANT
from router.request import DEFAULT_TENANT, Tenant
from router.telemetry.instruments import Counter
from router.telemetry.spans import TEXT_COMPLETION_OPERATION, RequestSpanFactory, RequestTrace

REQUEST_ID = web.RequestKey("request_id", str)
REQUEST_COUNTER = web.RequestKey("request_counter", Counter)  # counter of requests; removed once this one is counted
SPAN_FACTORY = web.RequestKey("span_factory", RequestSpanFactory)  # absent without tracing
REQUEST_SPAN = web.RequestKey("request_span", RequestTrace)
MAX_REQUEST_ID_LENGTH = 128
MILLISECONDS_PATTERN = re.compile(r"[0-9]{1,15}(\.[0-9]{0,15})?")


class RequestIdRegistry(Protocol):
    """Interface of the registry of request ids."""

    def can_use_request_id(self, request_id: str, tenant: Tenant) -> bool: ...


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Tenant, id, arrival time, deadline and tracing span of one HTTP request. `from_request` also counts the request
    and starts its span.
    """

    tenant: Tenant
    request_id: str
    # when `from_request` was called, of time.monotonic; handlers mostly do so before they read the body
    arrived_at: float
    timeout_ms: str | None  # as the client wrote it
    request_span: RequestTrace | None = None
    source_token: str = field(default="", repr=False)  # the client's token for adapter sources

    @classmethod
    def from_request(cls, request: web.Request, registry: RequestIdRegistry,
                     operation: str = TEXT_COMPLETION_OPERATION) -> "RequestContext":
        arrived_at, tenant = clock(), request.get(TENANT, DEFAULT_TENANT)
        client_request_id = request.headers.get("x-request-id") or request.headers.get("x-amzn-trace-id") or ""
        is_usable = (1 <= len(client_request_id) <= MAX_REQUEST_ID_LENGTH and client_request_id.isascii()
                     and client_request_id.isprintable())
        request_id = (client_request_id if is_usable and registry.can_use_request_id(client_request_id, tenant)
                      else secrets.token_hex(16))
        request[REQUEST_ID] = request_id
        if REQUEST_COUNTER in request:
            request.pop(REQUEST_COUNTER).add()
        if SPAN_FACTORY in request:
            request[REQUEST_SPAN] = request[SPAN_FACTORY].start_request_span(operation, request_id,
                                                                             get_trace_context_headers(request),
                                                                             arrived_at)
        return cls(tenant, request_id, arrived_at, request.headers.get("x-request-timeout-ms"),
                   request.get(REQUEST_SPAN), request.get(SOURCE_TOKEN, ""))

    def for_prompt(self, index: int) -> "RequestContext":
        """Return the context of the prompt at `index`: each needs an id of its own, and the first has the request's."""
        return replace(self, request_id=f"{self.request_id}.{index}") if index else self

    @property
    def deadline(self) -> float | None:
        """Deadline of the request, of time.monotonic; None without one. Raises InvalidRequest."""
        if self.timeout_ms is None:
            return None
        seconds = float(self.timeout_ms) / 1000 if MILLISECONDS_PATTERN.fullmatch(self.timeout_ms) else 0.0
        if seconds <= 0:
            raise InvalidRequest("the header `x-request-timeout-ms` must be a number of milliseconds above 0, got "
                                 f"{self.timeout_ms[:40]!a}")
        return self.arrived_at + seconds


def get_trace_context_headers(request: web.Request) -> dict[str, str]:
    """Return the W3C trace context headers; none unless there is exactly one `traceparent`."""
    parents = request.headers.getall("traceparent", [])
    states = request.headers.getall("tracestate", [])
    return {"traceparent": parents[0], "tracestate": ",".join(states)} if len(parents) == 1 else {}
