"""Routes that report on the server and its requests: `/info` and `/v1/models`, health probes, `/metrics` and
`/v1/requests`. All but the last are open without a key, so they reveal nothing about any tenant or request."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from importlib.metadata import version
from itertools import chain, islice
from time import monotonic as clock
from time import time
from typing import Any

from aiohttp import web

from router.adapters.registry import AdapterRegistry
from router.engine.engine import Engine
from router.errors import AdapterNotFound
from router.http.anthropic.rendering import model_json
from router.http.transport.auth import CLIENT
from router.http.transport.body import json_response
from router.http.transport.error_responses import TgiErrorReply
from router.http.transport.query_parameters import (
    ParameterParser,
    make_choice_parser,
    make_number_parser,
    parse_query_parameters,
    parse_text,
    parse_whole_number,
)
from router.http.transport.request_context_and_middleware import extract_request_id
from router.http.transport.services import ServiceRoutes
from router.request import FinishReason
from router.scheduler.sequence import RequestPhase
from router.telemetry.instruments import CONTENT_TYPE
from router.telemetry.phase_overlap import (
    Overlaps,
    measure_mean_other_decodes,
    measure_overlaps,
    sum_prefill_overlap_seconds,
)
from router.telemetry.server_metrics import MAX_FINISHED_RECORDS, MAX_REFUSED_RECORDS, RequestRecord

RETRY_AFTER_HEADERS = {"Retry-After": "1"}
ANTHROPIC_HEADER = "anthropic-version"  # which Anthropic's clients always send
VERSION = version("weft")
VALIDATION_PHASE = "validation"
CLOCK_OFFSET = time() - clock()  # from the times of records to Unix time
DEFAULT_LISTED_REQUESTS, MAX_LISTED_REQUESTS = 100, 500
ANY_ERROR = "any"  # value of the filter `error_type`
MAX_LISTED_RECORDS = 2 * MAX_FINISHED_RECORDS + MAX_REFUSED_RECORDS  # that filters choose from
REQUEST_FILTERS: Mapping[str, ParameterParser] = {
    "limit": make_number_parser(1, MAX_LISTED_REQUESTS), "state": make_choice_parser("waiting", "running", "over"),
    "adapter": parse_text, "error_type": parse_text, "finish_reason": make_choice_parser(*map(str, FinishReason)),
    "min_total_ms": parse_whole_number}
MAX_NAMED_PROMPTS = 3  # prompts of other requests that an explanation names
# Times are rounded to eighths of a millisecond: binary fractions, so that clients can sum them exactly.
FRACTIONS_PER_MS = 8
PHASE_DESCRIPTIONS = {
    VALIDATION_PHASE: "The body was read, checked and tokenized, and an adapter that was new here was fetched.",
    RequestPhase.QUEUE: "It waited until the step that ran was over, and for requests before it in the queue.",
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
    RequestPhase.PREFILL: "Its prompt was computed, in steps with prompts and tokens of others if there were any.",
    RequestPhase.DECODE: "Its tokens were generated, in steps with prompts and tokens of others if there were any.",
}
# By the phase of the others, which are the first in the queue or, for prompts, any.
MEANWHILE_DESCRIPTIONS = {
    RequestPhase.BATCH_FULL: "The first in the queue waited for a place in the batch (--max-batch-size).",
    RequestPhase.NO_FREE_BLOCKS: "The first in the queue waited for room in the cache.",
    RequestPhase.PREFILL_BUDGET: "The first in the queue waited for prompt tokens of a step "
                                 "(--max-batch-prefill-tokens, --max-decode-stall-ms).",
    RequestPhase.STATIC_GROUP: "The first in the queue waited for its group (--batching static).",
    RequestPhase.FAULT_ISOLATION: "The first in the queue waited for requests that were tried after a failed step.",
    RequestPhase.PREFILL: "Prompts of other requests were computed, too, in the same steps or in others.",
}


class InfoRoutes(ServiceRoutes):
    """Handlers of `/info`, `/version`, `/v1/models`, `/v1/models/{id}`, `/v1/requests`, `/v1/requests/{id}` and
    `/v1/requests/{id}/explain`."""

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/info", self.info), web.get("/version", self.version), web.get("/v1/models", self.models),
                web.get(r"/v1/models/{id:.+}", self.model),
                web.get("/v1/requests", self.requests), web.delete(r"/v1/requests/{id:[^/]+}", self.cancel),
                web.get(r"/v1/requests/{id:[^/]+}/explain", self.explain_request)]

    async def info(self, _: web.Request) -> web.Response:
        model_info, config, limits = (self._services.engine.model_info, self._services.config,
                                      self._services.validator.limits)
        return json_response({
            "model_id": self._services.served_model.name,
            "notice": self._services.served_model.notice or None,
            "model_sha": None,
            "model_pipeline_tag": None,
            "model_dtype": model_info.dtype,
            "model_device_type": model_info.device,
            "quantization": model_info.quantization or None,
            "num_shard": model_info.world_size,
            "exact": model_info.exact,
            "max_concurrent_requests": config.max_concurrent_requests,
            "max_best_of": config.max_best_of,
            "max_stop_sequences": config.max_stop_sequences,
            "max_input_tokens": limits.max_input_tokens,
            "max_total_tokens": limits.max_total_tokens,
            "max_batch_total_tokens": model_info.num_blocks * model_info.block_size,
            "max_batch_size": config.max_batch_size,
            "waiting_served_ratio": config.waiting_served_ratio,
            "max_waiting_tokens": config.max_waiting_tokens,
            "validation_workers": config.validation_workers,
            "max_client_batch_size": config.max_client_batch_size,
            "router": "text-generation-router",  # the name of the API: clients look for it
            "version": VERSION,
            "sha": None,
            "docker_label": None,
        })

    async def version(self, _: web.Request) -> web.Response:
        """Answer in vLLM's format."""
        return json_response({"version": VERSION})

    async def models(self, request: web.Request) -> web.Response:
        """List the model, and the adapters that requests may name as `model`."""
        models = await self._model_list(request)
        if ANTHROPIC_HEADER in request.headers:
            return json_response({"data": models, "has_more": False, "first_id": models[0]["id"],
                                  "last_id": models[-1]["id"]})
        return json_response({"object": "list", "data": models})

    async def model(self, request: web.Request) -> web.Response:
        """Return one entry of the list."""
        name, models = request.match_info["id"], await self._model_list(request)
        for model in models:
            if model["id"] == name:
                return json_response(model)
        names = ", ".join(model["id"] for model in models)
        reason = f"this server has no model {name[:100]!a}, only {names}"
        if self._services.config.compat == "none":
            raise AdapterNotFound(reason, param="model")
        raise web.HTTPNotFound(text=reason)

    async def _model_list(self, request: web.Request) -> list[dict[str, Any]]:
        served_model, limits, adapters = (self._services.served_model, self._services.validator.limits,
                                          await self._services.list_adapter_names())
        if ANTHROPIC_HEADER in request.headers:
            return [model_json(name, limits.max_input_tokens) for name in (*served_model.names, *adapters)]
        base = served_model.name
        base_model = {"id": base, "object": "model", "created": 0, "owned_by": base, "root": base, "parent": None,
                      "max_model_len": limits.max_total_tokens}
        return [*(base_model | {"id": name} for name in served_model.names),
                *(base_model | {"id": name, "root": root, "parent": base} for name, root in adapters.items())]

    async def requests(self, request: web.Request) -> web.Response:
        """List the requests of the client's own tenant: the unfinished ones, and behind them those that ended last."""
        filters = parse_query_parameters(request, REQUEST_FILTERS)
        limit, now = filters.pop("limit", DEFAULT_LISTED_REQUESTS), clock()
        records = self._services.engine.find_latest_request_records(request[CLIENT].tenant.name, MAX_LISTED_RECORDS)
        found = islice((record for record in records if matches_filters(record, filters, now)), limit)
        copies = [replace(record, timeline=record.timeline.copy()) for record in found]
        # In a thread, as timelines may be long.
        listed = await asyncio.to_thread(lambda: [describe_listed_request(record, now) for record in copies])
        return json_response({"requests": listed})

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancel a request of the client's own tenant. Its connection is closed without the end of the answer."""
        request_id = extract_request_id(request.match_info["id"])
        num_cancelled = self._services.engine.cancel_request(request_id, request[CLIENT].tenant.name)
        if not num_cancelled:
            raise web.HTTPNotFound(text="there is no unfinished request of this id; an answer has its id in the header "
                                        "x-request-id")
        return json_response({"id": request_id, "cancelled": num_cancelled})

    async def explain_request(self, request: web.Request) -> web.Response:
        """Report what a request spent its time on, without gaps. Only its own tenant may see it."""
        record = self._services.engine.get_request_record(extract_request_id(request.match_info["id"]))
        if record is None or record.tenant_name != request[CLIENT].tenant.name:
            raise web.HTTPNotFound(
                text="there is no request of this id, neither unfinished nor among the last "
                     f"{MAX_FINISHED_RECORDS} that ended; an answer has its id in the header x-request-id")
        others = self._services.engine.copy_request_records_except(record)
        record = replace(record, timeline=record.timeline.copy())
        # In a thread, since long timelines of many requests take a good part of a second.
        return json_response(await asyncio.to_thread(explain_request, record, others, clock()))


@dataclass(frozen=True, slots=True)
class ProbeRoutes:
    """Handlers of `/health`, `/ready`, `/live` and `/startup`."""

    why_unavailable: Callable[[], str]  # why the server is not ready; empty if it is
    _get_startup_progress: Callable[[], dict[str, Any] | None]  # None once the startup is complete

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self.health),
            web.get("/", self.health),
            web.get("/ping", self.health),
            web.get("/ready", self.ready),
            web.get("/live", self.live),
            web.get("/startup", self.startup),
        ]

    async def health(self, _: web.Request) -> web.Response:
        """Answer in text-generation-inference's format."""
        if not self.why_unavailable():
            return web.Response()
        return TgiErrorReply(503, "healthcheck", "unhealthy").to_response()

    async def ready(self, _: web.Request) -> web.Response:
        if not (reason := self.why_unavailable()):
            return probe_response(200, {"status": "ready"})
        return probe_response(503, {"error": reason, "error_type": "not_ready"})

    async def live(self, _: web.Request) -> web.Response:
        """Answer 200: a process that answers is alive."""
        return probe_response(200, {"status": "alive"})

    async def startup(self, _: web.Request) -> web.Response:
        progress = self._get_startup_progress()
        return probe_response(200, {"phase": "ready"}) if progress is None else probe_response(503, progress)


def probe_response(status: int, value: dict[str, Any]) -> web.Response:
    return web.Response(status=status, body=json.dumps(value).encode(), content_type="application/json",
                        headers={} if status == 200 else RETRY_AFTER_HEADERS)


@dataclass(frozen=True, slots=True)
class MetricsRoutes:
    """Handler of `/metrics`."""

    _engine: Engine
    _adapter_registry: AdapterRegistry | None = None
    _: KW_ONLY
    allows_json: bool = False  # whether `Accept: application/json` gets the metrics as JSON, as in LoRAX

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/metrics", self.metrics)]

    async def metrics(self, request: web.Request) -> web.Response:
        page = self._engine.render_metrics_page({} if self._adapter_registry is None
                                                else self._adapter_registry.find_public_names())
        if self.allows_json and request.headers.get("Accept") == "application/json":
            return json_response(metrics_page_to_json(page))
        return web.Response(body=page.encode(), headers={"Content-Type": CONTENT_TYPE})


def matches_filters(record: RequestRecord, filters: Mapping[str, Any], now: float) -> bool:
    """Return whether a record has all these values of query parameters."""
    values: dict[str, Any] = {
        "state": record.state, "adapter": record.adapter_name or "",
        "error_type": ANY_ERROR if record.error_type and filters.get("error_type") == ANY_ERROR else record.error_type,
        "finish_reason": record.finish_reason and str(record.finish_reason)}
    seconds = (record.timeline.ended_at or now) - record.arrived_at
    return (all(values[name] == wanted for name, wanted in filters.items() if name in values)
            and seconds * 1000 >= filters.get("min_total_ms", 0))


def describe_listed_request(record: RequestRecord, now: float) -> dict[str, Any]:
    """Return the JSON of a request in the list."""
    by_cause = {VALIDATION_PHASE: elapsed_ms(record.arrived_at, record.timeline.submitted_at)}
    by_cause |= {phase: round_ms(seconds) for phase, seconds in record.timeline.seconds_by_phase(now).items()}
    return request_record_json(record) | {"total_ms": elapsed_ms(record.arrived_at, record.timeline.ended_at or now),
                                          "by_cause": by_cause}


def metrics_page_to_json(page: str) -> dict[str, Any]:
    """Return each family with its type and its samples, keyed as in the text format."""
    families: dict[str, Any] = {}
    samples: list[dict[str, Any]] = []
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            families[name] = {"type": kind, "data": (samples := [])}
        elif not line.startswith("#"):
            key, _, value = line.rpartition(" ")
            samples.append({"key": key, "value": float(value)})
    return families


def explain_request(record: RequestRecord, others: list[RequestRecord], now: float) -> dict[str, Any]:
    """Return the JSON of an explanation. Of the other requests, only those of the same tenant are named."""
    timelines = [other.timeline for other in others]
    overlaps = measure_overlaps(record.timeline, timelines, now)
    prompts: list[dict[str, Any]] = [
        {"id": other.id, "prompt_tokens": other.num_prompt_tokens,
         "cached_tokens": other.timeline.num_prefix_hit_tokens, "ms": ms} for other in others
        if other.tenant_name == record.tenant_name
        and (ms := round_ms(sum_prefill_overlap_seconds(record.timeline, other.timeline, now)))]
    prompts.sort(key=lambda prompt: -prompt["ms"])
    # Several prompts or choices came in one HTTP request, which the record of the first has.
    exchange = next((other.http_exchange for other in (record, *others) if other.http_exchange is not None and (
        other.tenant_name, other.arrived_at) == (record.tenant_name, record.arrived_at)), None)
    return timeline_json(record, now, overlaps) | {
        "meanwhile_prompts": prompts[:MAX_NAMED_PROMPTS],
        "meanwhile_generating": round(measure_mean_other_decodes(record.timeline, timelines, now), 1),
        "http": exchange,
    }


def timeline_json(record: RequestRecord, now: float, overlaps: Overlaps) -> dict[str, Any]:
    """Return the part of an explanation about the request itself and the phases of others."""
    # Points in time are rounded, and lengths are their differences, so that intervals have no gaps.
    intervals: list[dict[str, Any]] = []
    for phase, start, end in [(VALIDATION_PHASE, record.arrived_at, record.timeline.submitted_at),
                              *record.timeline.intervals(now)]:
        start_ms, end_ms = elapsed_ms(record.arrived_at, start), elapsed_ms(record.arrived_at, end)
        intervals.append({"cause": phase, "start_ms": start_ms, "ms": end_ms - start_ms})
    by_cause: dict[str, float] = {}
    for interval in intervals:
        by_cause[interval["cause"]] = by_cause.get(interval["cause"], 0.0) + interval["ms"]
    meanwhile = {str(phase): rounded for phase, seconds_by_phase in overlaps.items() if (rounded := {
        str(other): ms for other, seconds in seconds_by_phase.items() if (ms := round_ms(seconds))})}
    return request_record_json(record) | {
        "total_ms": intervals[-1]["start_ms"] + intervals[-1]["ms"],
        "intervals": intervals,
        "by_cause": by_cause,
        "causes": {cause: PHASE_DESCRIPTIONS[cause] for cause in by_cause},
        "meanwhile": meanwhile,
        "meanwhile_causes": {other: MEANWHILE_DESCRIPTIONS[RequestPhase(other)]
                             for other in chain.from_iterable(meanwhile.values())},
    }


def request_record_json(record: RequestRecord) -> dict[str, Any]:
    """Return what the list of requests and an explanation both begin with."""
    first_token_at = record.timeline.first_start(RequestPhase.DECODE)
    return {
        "id": record.id,
        "tenant": record.tenant_name,
        "state": record.state,
        "error_type": record.error_type,
        "prompt_tokens": record.num_prompt_tokens,
        "cached_tokens": record.timeline.num_prefix_hit_tokens,
        "generated_tokens": record.num_generated,
        "arrived_at": round(record.arrived_at + CLOCK_OFFSET, 3),
        "adapter": record.adapter_name or None,
        "finish_reason": record.finish_reason and str(record.finish_reason),
        "first_token_ms": None if first_token_at is None else elapsed_ms(record.arrived_at, first_token_at),
    }


def elapsed_ms(arrived_at: float, moment: float) -> float:
    return round_ms(moment - arrived_at)


def round_ms(seconds: float) -> float:
    return round(seconds * 1000 * FRACTIONS_PER_MS) / FRACTIONS_PER_MS
