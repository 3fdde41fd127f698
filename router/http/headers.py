"""What clients say and are told in headers: which request it is, how long it may take, what its time went to.

Knows nothing of bodies.
"""

import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic as clock
from typing import Protocol

from aiohttp import web

from router.adapter import Borrowed, Named
from router.errors import InvalidRequest
from router.http.keys import TENANT, TOKEN
from router.http.rendering import Answer, Said
from router.messages import ModelFacts
from router.meters import Counter
from router.request import ANYONE, Tenant
from router.spans import TEXT, Spans, Traced
from router.story import RUNNING, Cause

REQUEST_ID = web.RequestKey("request_id", str)
CAME = web.RequestKey("came", Counter)  # where it is counted, until it was
SPANS = web.RequestKey("spans", Spans)  # where its span begins, if it is told of
TRACED = web.RequestKey("traced", Traced)
MAX_ID = 128
MOST_NAMED = 2048  # characters of the names of adapters: clients take no head of any length
MILLISECONDS = re.compile(r"[0-9]{1,15}(\.[0-9]{0,15})?")
LEAST_WAIT = 0.001  # seconds; below that a request did not wait


class Register(Protocol):
    """Says which ids are taken."""

    def may_use(self, request_id: str, tenant: Tenant) -> bool: ...


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what the head of the request says beside."""

    tenant: Tenant
    request_id: str
    came: float  # when the head had arrived
    timeout_ms: str | None  # as the client wrote it
    traced: Traced | None = None
    token: str = field(default="", repr=False)  # for where adapters come from

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
        """Of a request that asks for several things, each of which needs an id; the first has the one that is known."""
        return replace(self, request_id=f"{self.request_id}.{index}") if index else self

    @property
    def deadline(self) -> float | None:
        """The moment by which it must be over."""
        if self.timeout_ms is None:
            return None
        seconds = float(self.timeout_ms) / 1000 if MILLISECONDS.fullmatch(self.timeout_ms) else 0.0
        if seconds <= 0:
            raise InvalidRequest("the header `x-request-timeout-ms` must be a number of milliseconds above 0, got "
                                 f"{self.timeout_ms[:40]!a}")
        return self.came + seconds


def trace_context(request: web.Request) -> dict[str, str]:
    """What W3C calls so, as it came. Two parents are none."""
    parents = request.headers.getall("traceparent", [])
    states = request.headers.getall("tracestate", [])
    return {"traceparent": parents[0], "tracestate": ",".join(states)} if len(parents) == 1 else {}


def identity(request: web.Request) -> dict[str, str]:
    """The request's id, for every answer to a request that has one."""
    known = request.get(REQUEST_ID)
    return {} if known is None else {"x-request-id": known}


def compute(facts: ModelFacts, num_characters: int) -> dict[str, str]:
    """What works on a prompt of so many characters."""
    return {
        "x-compute-type": f"{facts.world_size}-{facts.device}",
        "x-compute-characters": str(num_characters),
        "x-weft-exact": str(int(facts.exact)),
    }


def going_by(adapter: Named | Borrowed | None) -> dict[str, str]:
    """The adapter that a request goes by; several that became one by all their names."""
    return {} if adapter is None else {
        "x-adapter-id": adapter.name[:MOST_NAMED], "x-adapter-source": (adapter.source or "")[:MOST_NAMED]}


def timings(answers: Sequence[Answer | Said], validation_seconds: float, total_seconds: float) -> dict[str, str]:
    """Of all answers together: for several prompts the sums."""
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
    """What most of the waiting was for."""
    longest = max(waiting, key=waiting.__getitem__, default=None)
    return {} if longest is None or waiting[longest] < LEAST_WAIT else {"x-wait-reason": str(longest)}


def milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))
