"""Request and response headers: request id, timeout, trace context, adapter and timings."""

import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic as clock
from typing import Protocol

from aiohttp import web

from router.adapters.reference import Borrowed, Named
from router.errors import InvalidRequest
from router.http.transport.auth import TENANT, TOKEN
from router.http.transport.collect import Answer, Said
from router.request import ANYONE, Tenant
from router.scheduler.plan import ModelFacts
from router.scheduler.timeline import RUNNING, Cause
from router.telemetry.instruments import Counter
from router.telemetry.spans import TEXT, Spans, Traced

REQUEST_ID = web.RequestKey("request_id", str)
CAME = web.RequestKey("came", Counter)  # counter of requests; removed once this one is counted
SPANS = web.RequestKey("spans", Spans)  # creates the request's span; absent without tracing
TRACED = web.RequestKey("traced", Traced)
MAX_ID = 128
MOST_NAMED = 2048  # characters of adapter names: clients limit the size of headers
MILLISECONDS = re.compile(r"[0-9]{1,15}(\.[0-9]{0,15})?")
LEAST_WAIT = 0.001  # seconds; a shorter wait gets no `x-wait-reason`


class Register(Protocol):
    """Interface of the registry of request ids."""

    def may_use(self, request_id: str, tenant: Tenant) -> bool: ...


@dataclass(frozen=True, slots=True)
class Caller:
    """Tenant of a request, its id, and values of its headers."""

    tenant: Tenant
    request_id: str
    came: float  # when `of` was called, of time.monotonic; handlers mostly do so before they read the body
    timeout_ms: str | None  # as the client wrote it
    traced: Traced | None = None
    token: str = field(default="", repr=False)  # the client's token for adapter sources

    @classmethod
    def of(cls, request: web.Request, register: Register, operation: str = TEXT) -> "Caller":
        came, tenant = clock(), request.get(TENANT, ANYONE)
        given = request.headers.get("x-request-id") or request.headers.get("x-amzn-trace-id") or ""
        usable = 1 <= len(given) <= MAX_ID and given.isascii() and given.isprintable()
        chosen = given if usable and register.may_use(given, tenant) else secrets.token_hex(16)
        request[REQUEST_ID] = chosen
        if CAME in request:
            request.pop(CAME).add()
        if SPANS in request:
            request[TRACED] = request[SPANS].begin(operation, chosen, trace_context(request), came)
        return cls(tenant, chosen, came, request.headers.get("x-request-timeout-ms"), request.get(TRACED),
                   request.get(TOKEN, ""))

    def part(self, index: int) -> "Caller":
        """Return the caller of the prompt at `index`: each needs an id of its own, and the first has the request's."""
        return replace(self, request_id=f"{self.request_id}.{index}") if index else self

    @property
    def deadline(self) -> float | None:
        """Deadline of the request, of time.monotonic; None without one. Raises InvalidRequest."""
        if self.timeout_ms is None:
            return None
        seconds = float(self.timeout_ms) / 1000 if MILLISECONDS.fullmatch(self.timeout_ms) else 0.0
        if seconds <= 0:
            raise InvalidRequest("the header `x-request-timeout-ms` must be a number of milliseconds above 0, got "
                                 f"{self.timeout_ms[:40]!a}")
        return self.came + seconds


def trace_context(request: web.Request) -> dict[str, str]:
    """Return the W3C trace context headers; none unless there is exactly one `traceparent`."""
    parents = request.headers.getall("traceparent", [])
    states = request.headers.getall("tracestate", [])
    return {"traceparent": parents[0], "tracestate": ",".join(states)} if len(parents) == 1 else {}


def identity(request: web.Request) -> dict[str, str]:
    """Return the header with the request's id, if it has one already."""
    known = request.get(REQUEST_ID)
    return {} if known is None else {"x-request-id": known}


def compute(facts: ModelFacts, num_characters: int) -> dict[str, str]:
    """Return the headers with the number and type of devices, the length of the prompt in characters, and whether
    results are exact (independent of the batch)."""
    return {
        "x-compute-type": f"{facts.world_size}-{facts.device}",
        "x-compute-characters": str(num_characters),
        "x-weft-exact": str(int(facts.exact)),
    }


def going_by(adapter: Named | Borrowed | None) -> dict[str, str]:
    """Return the headers that name the adapter in use; names of merged adapters are joined by commas."""
    return {} if adapter is None else {
        "x-adapter-id": adapter.name[:MOST_NAMED], "x-adapter-source": (adapter.source or "")[:MOST_NAMED]}


def timings(answers: Sequence[Answer | Said], validation_seconds: float, total_seconds: float) -> dict[str, str]:
    """Return the timing headers; with several answers, the sums over all of them."""
    spent = seconds_of(answers)
    num_tokens = sum(answer.end.num_tokens for answer in answers)
    waiting = {cause: seconds for cause, seconds in spent.items() if cause not in RUNNING}
    prefill, decode = spent.get(Cause.PREFILL, 0.0), spent.get(Cause.DECODE, 0.0)
    queue, inference = math.fsum(waiting.values()), prefill + decode
    return {
        "x-compute-time": str(total_seconds),
        "x-total-time": milliseconds(total_seconds),
        "x-validation-time": milliseconds(validation_seconds),
        "x-queue-time": milliseconds(queue),
        "x-inference-time": milliseconds(inference),
        "x-time-per-token": milliseconds(inference / max(num_tokens, 1)),
        "x-prompt-tokens": str(sum(len(answer.choice.request.prompt) for answer in answers)),
        "x-generated-tokens": str(num_tokens),
        "x-queue-ms": f"{queue * 1000:.1f}",
        "x-prefill-ms": f"{prefill * 1000:.1f}",
        "x-decode-ms": f"{decode * 1000:.1f}",
        "x-cached-tokens": str(sum(answer.end.story.cached_tokens for answer in answers)),
        **wait_reason(waiting),
    }


def seconds_of(answers: Sequence[Answer | Said]) -> Mapping[Cause, float]:
    now, sums = clock(), dict[Cause, float]()
    for answer in answers:
        for cause, seconds in answer.end.story.seconds(now).items():
            sums[cause] = sums.get(cause, 0.0) + seconds
    return sums


def wait_reason(waiting: Mapping[Cause, float]) -> dict[str, str]:
    """Return the header with the cause of most of the waiting time, if there was any."""
    longest = max(waiting, key=waiting.__getitem__, default=None)
    return {} if longest is None or waiting[longest] < LEAST_WAIT else {"x-wait-reason": str(longest)}


def milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))
