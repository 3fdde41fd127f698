"""`GET /v1/requests/{id}/explain`: what a request spent its time on, without gaps. Only its own tenant may see it."""

from collections.abc import Iterator
from time import monotonic as clock
from typing import Any

from aiohttp import web

from router.http.transport.auth import CLIENT
from router.http.transport.body import json_response
from router.http.transport.services import EngineClient
from router.scheduler.sequence import RequestPhase
from router.telemetry.server_metrics import MAX_FINISHED_RECORDS, RequestRecord

VALIDATION_PHASE = "validation"
# Times are rounded to eighths of a millisecond: binary fractions, so that clients can sum them exactly.
FRACTIONS_PER_MS = 8
PHASE_DESCRIPTIONS = {
    VALIDATION_PHASE: "The body was read, checked and tokenised.",
    RequestPhase.QUEUE: "Others were served first.",
    RequestPhase.OTHER_TENANTS: "Its tenant had had its share, and requests of others were served first.",
    RequestPhase.STATIC_GROUP: "A group that came before it was running, or its own was not complete (--batching "
                               "static).",
    RequestPhase.BATCH_FULL: "As many requests were running as may run at once (--max-batch-size).",
    RequestPhase.NO_FREE_BLOCKS: "The cache had no room for its prompt.",
    RequestPhase.PREFILL_BUDGET: "The prompt tokens of the step were spent, or would have kept running requests "
                                 "waiting for too long.",
    RequestPhase.SHARED_PREFIX: "A running request was computing the beginning of its prompt, which it then found in "
                                "the cache.",
    RequestPhase.ADAPTER: "Its adapter was being loaded.",
    RequestPhase.GRAMMAR: "Its grammar was being prepared.",
    RequestPhase.FAULT_ISOLATION: "A step had failed, and those who took part were tried before others.",
    RequestPhase.SLOW_CLIENT: "Its client did not read what it was sent.",
    RequestPhase.PREEMPTED: "It gave its place in the cache to others and waited to start again.",
    RequestPhase.NO_SHARDS: "The processes of the model were not there.",
    RequestPhase.PREFILL: "Its prompt was computed.",
    RequestPhase.DECODE: "Tokens were generated.",
}


class RequestTimelineRoutes:
    """Handler of `/v1/requests/{id}/explain`."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    def routes(self) -> list[web.RouteDef]:
        return [web.get(r"/v1/requests/{id:[^/]+}/explain", self.explain)]

    async def explain(self, request: web.Request) -> web.Response:
        record = self._engine.get_request_record(request.match_info["id"])
        if record is None or record.tenant_name != request[CLIENT].tenant.name:
            raise web.HTTPNotFound(
                text=f"no request of this id is served, or was one of the last {MAX_FINISHED_RECORDS}")
        return json_response(timeline_json(record, clock()))


def timeline_json(record: RequestRecord, now: float) -> dict[str, Any]:
    intervals = list(round_intervals(record, now))
    by_cause: dict[str, float] = {}
    for interval in intervals:
        by_cause[interval["cause"]] = by_cause.get(interval["cause"], 0.0) + interval["ms"]
    return {
        "id": record.id,
        "tenant": record.tenant_name,
        "state": record.state,
        "prompt_tokens": record.num_prompt_tokens,
        "cached_tokens": record.timeline.num_prefix_hit_tokens,
        "generated_tokens": record.num_generated,
        "total_ms": intervals[-1]["start_ms"] + intervals[-1]["ms"],
        "intervals": intervals,
        "by_cause": by_cause,
        "causes": {cause: PHASE_DESCRIPTIONS[cause] for cause in by_cause},
    }


def round_intervals(record: RequestRecord, now: float) -> Iterator[dict[str, Any]]:
    """Yield the intervals without gaps: points in time are rounded, and lengths are their differences."""
    intervals = [(VALIDATION_PHASE, record.arrived_at, record.timeline.submitted_at), *record.timeline.intervals(now)]
    for phase, start, end in intervals:
        start_ms, end_ms = elapsed_ms(record.arrived_at, start), elapsed_ms(record.arrived_at, end)
        yield {"cause": phase, "start_ms": start_ms, "ms": end_ms - start_ms}


def elapsed_ms(arrived_at: float, moment: float) -> float:
    return round((moment - arrived_at) * 1000 * FRACTIONS_PER_MS) / FRACTIONS_PER_MS
