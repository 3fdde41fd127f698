"""Context of an HTTP request (tenant, id, arrival time, deadline, tracing span), the headers of responses (request id,
ignored fields, model, adapter), and the middlewares around all handlers: one authenticates, counts and logs requests,
the other ends the span that `RequestContext.from_request` begins. Only requests that run the model have a span."""

import logging
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic as clock
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from router.adapters.reference import AdapterReference, ResolvedAdapter
from router.api_keys import ApiKeys
from router.engine.client_streams import ArrivingRequests
from router.engine.engine import Engine
from router.errors import InvalidRequest
from router.http.transport.auth import CLIENT, KEYLESS_CLIENT, authenticate, check_host
from router.http.transport.body import IGNORED_FIELDS, LONG_BODY_THREADS, MAX_INLINE_BYTES, ON_BODY_READ
from router.http.transport.error_responses import error_label, is_client_error
from router.model_info import ModelInfo
from router.request import FairThreadPool, Tenant
from router.telemetry.instruments import Counter
from router.telemetry.server_metrics import RequestRecord, sum_choices_for_log
from router.telemetry.spans import TEXT_COMPLETION_OPERATION, RequestSpanFactory, RequestTrace

REQUEST_ID = web.RequestKey("request_id", str)
# What follows the prefix in an answer's id: the request's id, by which the request can be found then, unless the client
# has chosen that, which may be long or used twice.
ANSWER_ID = web.RequestKey("answer_id", str)
ARRIVED_AT = web.RequestKey("arrived_at", float)  # of time.monotonic
ARRIVING_REQUESTS = web.RequestKey("arriving_requests", ArrivingRequests)  # those that a shutdown waits for
REQUEST_COUNTER = web.RequestKey("request_counter", Counter)  # counter of requests; removed once this one is counted
SPAN_FACTORY = web.RequestKey("span_factory", RequestSpanFactory)  # absent without tracing
REQUEST_SPAN = web.RequestKey("request_span", RequestTrace)
# Type of the exception from which a response was made. The exception itself would reference the request through its
# traceback, and both would stay in memory until the garbage collector runs.
FAILURE_TYPE = web.RequestKey("failure", type)
DROPPED_LABEL = "dropped"  # the connection ended before the response was complete, so the span has no status
MAX_REQUEST_ID_LENGTH = 128
MAX_ADAPTER_HEADER_CHARS = 2048  # characters of adapter names: clients limit the size of headers
MAX_KNOWN_HOSTS = 64
MAX_USER_AGENT_CHARS = 200
ANSWER_ID_PATTERN = re.compile("(?:chatcmpl-|cmpl-|msg_|resp_)([0-9a-f]{32})")
MILLISECONDS_PATTERN = re.compile(r"[0-9]{1,15}(\.[0-9]{0,15})?")

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Tenant, id, arrival time, deadline and tracing span of one HTTP request. `from_request` also counts the request
    and starts its span."""

    tenant: Tenant
    request_id: str
    # when `from_request` was called, of time.monotonic; handlers mostly do so before they read the body
    arrived_at: float
    timeout_ms: str | None  # as the client wrote it
    request_span: RequestTrace | None = None
    source_token: str = field(default="", repr=False)  # the client's token for adapter sources
    # where a long body, or one of unknown length, is converted; None for a short one
    long_body_threads: FairThreadPool | None = None

    @classmethod
    def from_request(cls, request: web.Request, engine: Engine,
                     operation: str = TEXT_COMPLETION_OPERATION) -> "RequestContext":
        arrived_at, client = clock(), request.get(CLIENT, KEYLESS_CLIENT)
        request_id, new_id = get_client_request_id(request), create_request_id()
        if not request_id or not engine.can_use_request_id(request_id, client.tenant):
            request_id = new_id
        request[REQUEST_ID], request[ANSWER_ID], request[ARRIVED_AT] = request_id, new_id, arrived_at
        if REQUEST_COUNTER in request:
            request.pop(REQUEST_COUNTER).add()
        if ARRIVING_REQUESTS in request:
            request[ON_BODY_READ] = partial(request[ARRIVING_REQUESTS].add, request_id)
        if SPAN_FACTORY in request:
            # W3C's headers of the trace context; none unless there is exactly one `traceparent`
            parents, states = request.headers.getall("traceparent", []), request.headers.getall("tracestate", [])
            trace_context = {"traceparent": parents[0], "tracestate": ",".join(states)} if len(parents) == 1 else {}
            request[REQUEST_SPAN] = request[SPAN_FACTORY].start_request_span(operation, request_id, trace_context,
                                                                             arrived_at)
        length = request.headers.get("Content-Length", "")
        is_short = length.isdecimal() and int(length) <= MAX_INLINE_BYTES and "Content-Encoding" not in request.headers
        return cls(client.tenant, request_id, arrived_at, request.headers.get("x-request-timeout-ms"),
                   request.get(REQUEST_SPAN), client.source_token,
                   None if is_short else request.app.get(LONG_BODY_THREADS))

    async def run_in_thread_if_long(self, work: Callable[[], T]) -> T:
        """Return the result of work whose time grows with the body: in a thread if that is long. Raises Overloaded if
        too much work of the tenant waits."""
        return work() if self.long_body_threads is None else await self.long_body_threads.run(work, self.tenant)

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


def get_client_request_id(request: web.Request) -> str:
    """Return the id that the client has given the request; empty without a valid one."""
    request_id = request.headers.get("x-request-id") or request.headers.get("x-amzn-trace-id") or ""
    is_valid = len(request_id) <= MAX_REQUEST_ID_LENGTH and request_id.isascii() and request_id.isprintable()
    return request_id if is_valid else ""


def create_request_id() -> str:
    return secrets.token_hex(16)


def extract_request_id(request_or_answer_id: str) -> str:
    """Return the id of the request whose answer has this id, or which has it itself."""
    match = ANSWER_ID_PATTERN.fullmatch(request_or_answer_id)
    return request_or_answer_id if match is None else match[1]


async def add_request_id_header(request: web.Request, response: web.StreamResponse) -> None:
    """Add the id of the request to a response that is about to be sent, also to errors and streams. A request that does
    not run the model has the client's id, or a new one."""
    response.headers["x-request-id"] = (request.get(REQUEST_ID) or get_client_request_id(request)
                                        or create_request_id())


def ignored_fields_headers(request: web.Request) -> dict[str, str]:
    """Return the header about the request's body: the fields that were ignored, if any were."""
    return {"x-ignored-fields": request[IGNORED_FIELDS]} if IGNORED_FIELDS in request else {}


def response_headers(request: web.Request, model_info: ModelInfo, num_characters: int,
                     adapter: AdapterReference | ResolvedAdapter | None = None) -> dict[str, str]:
    """Return the headers with the number and type of devices, the length of the prompt in characters, whether results
    are exact (independent of the batch), ignored fields, and the adapter in use; names of merged adapters are joined by
    commas."""
    headers = {
        "x-compute-type": f"{model_info.world_size}-{model_info.device}",
        "x-compute-characters": str(num_characters),
        "x-weft-exact": str(int(model_info.exact)),
    }
    headers |= ignored_fields_headers(request)
    return headers if adapter is None else headers | adapter_headers(adapter)


def adapter_headers(adapter: AdapterReference | ResolvedAdapter) -> dict[str, str]:
    return {"x-adapter-id": adapter.name[:MAX_ADAPTER_HEADER_CHARS],
            "x-adapter-source": (adapter.source or "")[:MAX_ADAPTER_HEADER_CHARS]}


def create_request_middleware(api_keys: ApiKeys, render_failure: Callable[[web.Request, Exception], web.Response],
                              engine: Engine | None = None, *, logs_requests: bool = False,
                              allowed_hosts: frozenset[str] | None = None) -> Middleware:
    """Return the middleware that authenticates requests, refuses those for other hosts, counts and logs them, and turns
    exceptions into error responses by `render_failure`.

    A request is counted when its handler calls `RequestContext.from_request`, and again when it is answered or fails;
    then it is logged, too.
    """
    are_keys_required = api_keys.are_required
    request_metrics = None if engine is None else engine.server_metrics.requests
    known_hosts: set[str | None] = set()  # values of the header that are allowed

    @web.middleware
    async def handle_request(request: web.Request, handler: Handler) -> web.StreamResponse:
        response: web.StreamResponse | None = None  # None if the client has left
        try:
            if allowed_hosts is not None and (host := request.headers.get("Host")) not in known_hosts:
                check_host(request, allowed_hosts)
                if len(known_hosts) < MAX_KNOWN_HOSTS:
                    known_hosts.add(host)
            if are_keys_required or "Authorization" in request.headers:
                authenticate(request, api_keys)
            else:
                request[CLIENT] = KEYLESS_CLIENT
            if engine is not None and request_metrics is not None:
                request[REQUEST_COUNTER] = request_metrics.num_received
                request[ARRIVING_REQUESTS] = engine.arriving_requests
            response = await handler(request)
            return response
        except BaseException as error:
            request[FAILURE_TYPE] = type(error)
            if not isinstance(error, Exception):  # the client has left
                raise
            response = render_failure(request, error)
            return response
        finally:
            if engine is not None and REQUEST_ID in request:
                record_request_end(request, response, engine,
                                   logs_request=logs_requests and logger.isEnabledFor(logging.INFO))

    return handle_request


def record_request_end(request: web.Request, response: web.StreamResponse | None, engine: Engine, *,
                       logs_request: bool) -> None:
    """Count a request that is over, add to its record why it failed, and log it."""
    request_metrics, failure_type = engine.server_metrics.requests, request.get(FAILURE_TYPE)
    label = None if failure_type is None else error_label(failure_type)
    (request_metrics.num_succeeded if label is None else request_metrics.num_failed[label]).add()
    submitted_record = find_request_record(request, engine)
    if submitted_record is None:
        engine.arriving_requests.discard(request[REQUEST_ID])
    record = submitted_record if label is None else record_failure(request, engine, submitted_record, label)
    if record is not None:
        record.http_exchange = describe_http_exchange(request, response)
    if logs_request:
        status = " ".join(filter(None, ("" if response is None else str(response.status), label)))
        log_request(request, status, {} if submitted_record is None else submitted_record.log_fields(clock())
                    | sum_choices_for_log(engine.find_prompt_records(submitted_record)))


def find_request_record(request: web.Request, engine: Engine) -> RequestRecord | None:
    """Return the record of a request; None if it was not submitted, also where an earlier one had the same id."""
    record = engine.get_request_record(request[REQUEST_ID])
    return None if record is None or record.arrived_at != request[ARRIVED_AT] else record


def record_failure(request: web.Request, engine: Engine, record: RequestRecord | None, label: str) -> RequestRecord:
    """Add to the record why the request failed. One that was not submitted gets a record of its own, without tokens."""
    if record is not None:
        record.error_type = label
        return record
    refused = RequestRecord.of_refused(request[REQUEST_ID], request[CLIENT].tenant.name, request[ARRIVED_AT], clock(),
                                       label)
    engine.add_refused_request(refused)
    return refused


def describe_http_exchange(request: web.Request, response: web.StreamResponse | None) -> dict[str, Any]:
    """Return route, status and headers. Of the request's headers only that which names its program may be shown."""
    return {"route": f"{request.method} {request.rel_url.raw_path}",
            "status": None if response is None else response.status,
            "user_agent": request.headers.get("User-Agent", "")[:MAX_USER_AGENT_CHARS] or None,
            "response_headers": {} if response is None else dict(response.headers)}


def log_request(request: web.Request, status: str, fields: Mapping[str, Any]) -> None:
    """Log a request that is over: a line of lengths and times, never of text. `status` is the HTTP status, with the
    reason where it failed; `fields` is empty if the request did not get as far as the scheduler."""
    details = {"request_id": request[REQUEST_ID], **fields}
    if IGNORED_FIELDS in request:
        details["ignored_fields"] = request[IGNORED_FIELDS]
    route = f"{request.method} {request.rel_url.raw_path}"
    logger.info("%s %s: %s", route, status,
                ", ".join(f"{name} {' '.join(value.split()) if isinstance(value, str) else value}"
                          for name, value in details.items()),
                extra={"fields": {"route": route, "status": status, **details}})


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
    if response is not None and response.content_length is None:
        attributes["gen_ai.request.stream"] = True
    # Spans of failures that clients cause are not marked as failed.
    request_span.end_request(attributes, is_server_error=failure_type is not None and not is_client_error(failure_type))
