"""Routes of the live view, which the page in the browser and `weft top` share: the engine's state, its steps as events,
the buffered steps as a trace, and a simulation of the same requests under another way of batching."""

import asyncio
from collections.abc import Callable, Mapping
from json import dumps
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import Field

from router.errors import InvalidRequest, MonitorBusy
from router.http.routes.status import PHASE_DESCRIPTIONS, VERSION
from router.http.transport.auth import CLIENT
from router.http.transport.body import ReportingBodyModel, json_text_response, read_body
from router.http.transport.errors import find_error_reply_type
from router.http.transport.query import parse_whole_number, read_query
from router.http.transport.request_context import request_headers
from router.http.transport.services import ServiceRoutes, Services
from router.http.transport.sse import open_response_stream
from router.monitor.batching_simulation import (
    MAX_SIMULATED_REQUESTS,
    BatchingSettings,
    make_arrivals,
    measure_timing,
    parse_steps,
    select_sequences,
    simulate_batching,
    summarize_steps,
)
from router.monitor.chrome_trace import make_chrome_trace
from router.monitor.monitor import BufferedStretch, render_event
from router.monitor.observed_steps import round_seconds
from router.monitor.viewer import Viewer
from router.scheduler.sequence import RequestPhase
from router.simulation.trace import RequestArrival, parse_plain_arrival

MAX_WAITING_SIMULATIONS = 4
TRACE_HEADERS = {"Content-Disposition": 'attachment; filename="weft-trace.json"'}
CAUSES = {str(phase): description for phase, description in PHASE_DESCRIPTIONS.items() if phase in {*RequestPhase}}
STRETCH_PARAMETERS = {"since": parse_whole_number, "until": parse_whole_number}

TokenCount = Annotated[int, Field(ge=1)]


class SimulatedRequest(ReportingBodyModel):
    """A request of a simulation, as in a plain trace of `weft simulate`."""

    at: Annotated[float, Field(ge=0, description="Seconds after the beginning at which it arrives.")]
    prompt_tokens: Annotated[TokenCount, Field(description="Length of its prompt.")]
    output_tokens: Annotated[TokenCount, Field(description="Number of tokens that it generates.")]


class SimulateRequest(ReportingBodyModel):
    """What to simulate: these requests, or else those of the buffered steps."""

    batching: Annotated[Literal["static", "continuous", "none"], Field(
        description="Way of batching, as --batching.")] = "static"
    requests: Annotated[list[SimulatedRequest] | None, Field(
        min_length=1, max_length=MAX_SIMULATED_REQUESTS, fail_fast=True,
        description="Requests to simulate. Without them, those that ran in the buffered steps.")] = None
    since: Annotated[int | None, Field(
        ge=0, description="Number of the step after which the buffered steps begin. Default: all.")] = None
    until: Annotated[int | None, Field(ge=0, description="Number of the last one of them.")] = None
    max_batch_size: Annotated[int | None, Field(
        ge=1, le=1024, description="Places in the batch. Default: the server's --max-batch-size.")] = None
    static_window_ms: Annotated[float, Field(
        ge=0, le=60_000, description="Time for which the first of a static group waits for others.")] = 0.0


class EngineRoutes(ServiceRoutes):
    """Handlers of `/v1/engine/state`, `/v1/engine/events`, `/v1/engine/trace` and `/v1/engine/simulate`."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._simulation_lock = asyncio.Lock()
        self._num_simulations = 0  # running or waiting for their turn

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/engine/state", self.state), web.get("/v1/engine/events", self.events, allow_head=False),
                web.get("/v1/engine/trace", self.trace), web.post("/v1/engine/simulate", self.simulate)]

    async def state(self, request: web.Request) -> web.Response:
        read_query(request, {})
        return json_text_response(dumps(self._describe_state(self._make_viewer(request))))

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Send the state, and then frames as long as the client stays."""
        since = read_query(request, {"since": parse_whole_number}).get("since")
        viewer, reply_type = self._make_viewer(request), find_error_reply_type(request.path,
                                                                              self._services.config.compat)

        def render_state() -> bytes:
            return render_event("state", dumps(self._describe_state(viewer), separators=(",", ":")))

        with self._services.engine.monitor.watch(viewer, render_state, since) as feed:
            async with open_response_stream(
                    request, {}, self._services.config.slow_client_timeout,
                    lambda error: f"event: error\ndata: {reply_type.from_exception(error).to_json()}\n\n") as stream:
                async for data in feed.iterate_events():
                    stream.write(data)
                    if stream.is_paused:
                        await stream.drain()
        return stream.response

    async def trace(self, request: web.Request) -> web.Response:
        """Send the buffered steps in Chrome's trace-event format."""
        stretch = self._get_stretch(**read_query(request, STRETCH_PARAMETERS))
        described = self._services.engine.monitor.describe_sequences(stretch.sequences.values(),
                                                                     self._make_viewer(request))
        metadata = {"server": f"weft {VERSION}", "model": self._services.served_model.name,
                    "first_step": stretch.steps[0].number, "last_step": stretch.steps[-1].number}
        # In a thread, since a long stretch has some hundred thousand events.
        return json_text_response(await asyncio.to_thread(render_trace, stretch, described, metadata), TRACE_HEADERS)

    async def simulate(self, request: web.Request) -> web.Response:
        """Simulate requests under another way of batching, by the scheduler and the cost model of this server."""
        body = await read_body(request, SimulateRequest)
        engine, viewer = self._services.engine, self._make_viewer(request)
        self._check_simulation(body)
        given = body.requests is not None
        stretch = (engine.monitor.get_buffered_stretch() if given
                   else self._get_stretch(body.since or 0, body.until))
        sequences = [] if given else select_sequences(stretch)[:MAX_SIMULATED_REQUESTS]
        arrivals = make_given_arrivals(body.requests or ()) if given else make_arrivals(sequences)
        settings = BatchingSettings(body.batching, body.max_batch_size, body.static_window_ms).apply(
            self._services.config, engine.model_info)
        coefficients = engine.monitor.cost_coefficients

        def run() -> dict[str, Any]:
            steps = parse_steps(stretch)
            simulated = simulate_batching(arrivals, settings, engine.model_info, measure_timing(steps, coefficients))
            submitted_at = {sequence.id: sequence.submitted_at + engine.monitor.clock_offset for sequence in sequences}
            return {"batching": body.batching, "max_batch_size": settings.max_batch_size, "requests": len(arrivals),
                    "steps": simulated.steps, "summary": simulated.summary, "cached_tokens": simulated.cached_tokens,
                    "recorded": None if given else summarize_steps(steps, submitted_at)}

        answer = await self._run_simulation(run)
        described = (engine.monitor.describe_sequences(sequences, viewer) if sequences
                     else [describe_given_request(arrival) for arrival in arrivals])
        for number, (entry, arrival, num_cached) in enumerate(
                zip(described, arrivals, answer.pop("cached_tokens"), strict=True), 1):
            entry |= {"source_id": entry["id"] or None, "id": number, "cached_tokens": num_cached,
                      "submitted_at": round_seconds(arrival.arrived_at)}
        text = await asyncio.to_thread(dumps, answer | {"sequences": described})
        return json_text_response(text, request_headers(request))

    async def _run_simulation(self, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Run simulations one after the other in a thread, so that they leave the engine's its time."""
        if self._num_simulations > MAX_WAITING_SIMULATIONS:
            raise MonitorBusy(f"{MAX_WAITING_SIMULATIONS} simulations wait already, as many as may")
        self._num_simulations += 1
        try:
            async with self._simulation_lock:
                return await asyncio.to_thread(run)
        finally:
            self._num_simulations -= 1

    def _check_simulation(self, body: SimulateRequest) -> None:
        """Raises InvalidRequest for what the server could not serve either."""
        if body.requests is not None and (body.since is not None or body.until is not None):
            raise InvalidRequest("`requests` cannot be given together with `since` or `until`")
        limit = self._services.validator.limits.max_total_tokens
        for index, given in enumerate(body.requests or ()):
            if (total := given.prompt_tokens + given.output_tokens) > limit:
                raise InvalidRequest(f"`requests.{index}` has {total} tokens, prompt and output together; the most are "
                                     f"{limit} (--max-total-tokens)")

    def _get_stretch(self, since: int = 0, until: int | None = None) -> BufferedStretch:
        """Return the buffered steps. Raises the HTTP error 404 if there are none."""
        stretch = self._services.engine.monitor.get_buffered_stretch(since, until)
        if not stretch.steps:
            raise web.HTTPNotFound(text="no steps are buffered" + (" in this stretch" if since or until else "")
                                   + "; they are while somebody watches /v1/engine/events, and for five minutes after")
        return stretch

    def _make_viewer(self, request: web.Request) -> Viewer:
        client, registry = request[CLIENT], self._services.validator.adapter_registry
        # As in the list of models, which is open to everybody.
        public_names = () if registry is None else (reference.name for reference in registry.aliases.values())
        return Viewer(client.tenant.name, client.is_admin, frozenset(public_names),
                      shows_text=self._services.config.ui_show_text)

    def _describe_state(self, viewer: Viewer) -> dict[str, Any]:
        state = self._services.engine.monitor.describe_state(viewer)
        return {"t": state.pop("t"), "step": state.pop("step"), "server": self._describe_server(viewer), **state,
                "causes": CAUSES}

    def _describe_server(self, viewer: Viewer) -> dict[str, Any]:
        services, engine = self._services, self._services.engine
        config, model_info, limits = services.config, engine.model_info, services.validator.limits
        settings, not_ready_reason = engine.monitor.settings, engine.why_unavailable()
        return {
            "model": services.served_model.name, "notice": services.served_model.notice or None, "version": VERSION,
            "policy": settings.policy_name, "batching": "static" if settings.static else
            "none" if config.batching in {"none", "nobatch"} else "continuous",
            "max_batch_size": settings.max_batch_size, "max_batch_prefill_tokens": settings.max_prefill_tokens,
            "max_batch_total_tokens": model_info.num_blocks * model_info.block_size,
            "max_input_tokens": limits.max_input_tokens, "max_total_tokens": limits.max_total_tokens,
            "max_concurrent_requests": config.max_concurrent_requests, "look_ahead": settings.look_ahead,
            "block_size": model_info.block_size, "num_blocks": model_info.num_blocks,
            "cache_bytes": model_info.cache_bytes, "cache_size_note": model_info.cache_size_note or None,
            "device": model_info.device, "dtype": model_info.dtype, "num_shard": model_info.world_size,
            "exact": model_info.exact, "kinds": [*map(str, model_info.supported_kinds)],
            "adapters": services.validator.adapter_registry is not None,
            "max_active_adapters": settings.max_active_adapters, "ready": not not_ready_reason,
            "not_ready_reason": not_ready_reason or None, "has_shards": engine.has_shards,
            "show_text": config.ui_show_text, "keys": bool(config.api_key or config.api_keys),
            "tenant": viewer.tenant_name, "role": "admin" if viewer.is_admin else "user"}


def render_trace(stretch: BufferedStretch, described: list[dict[str, Any]], metadata: Mapping[str, Any]) -> str:
    return dumps(make_chrome_trace(parse_steps(stretch), {entry["id"]: entry for entry in described}, metadata),
                 separators=(",", ":"))


def make_given_arrivals(requests: Any) -> list[RequestArrival]:
    arrivals = [parse_plain_arrival(number, given.model_dump()) for number, given in enumerate(requests, 1)]
    return sorted(arrivals, key=lambda arrival: arrival.arrived_at)


def describe_given_request(arrival: RequestArrival) -> dict[str, Any]:
    request = arrival.request
    return {"id": 0, "own": True, "request_id": None, "kind": str(request.kind), "tenant": None, "tenant_ordinal": 0,
            "adapter": None, "adapter_ordinal": 0, "prompt_tokens": len(request.prompt),
            "max_new_tokens": request.max_new_tokens}
