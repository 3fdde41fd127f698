"""Routes of the live view, which the page in the browser and `weft top` share: the engine's state, its steps as events,
the buffered steps as a trace, and a simulation of the same requests under another way of batching."""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from json import dumps
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import Field

from router.errors import InvalidRequest, MonitorBusy
from router.http.routes.status import PHASE_DESCRIPTIONS, VERSION
from router.http.transport.auth import CLIENT, require_admin
from router.http.transport.body import LenientBodyModel, json_response, json_text_response, read_body
from router.http.transport.error_responses import find_error_reply_type
from router.http.transport.query_parameters import parse_query_parameters, parse_whole_number
from router.http.transport.request_context_and_middleware import ignored_fields_headers
from router.http.transport.services import ServiceRoutes, Services
from router.http.transport.sse import open_response_stream
from router.monitor.batching_simulation import (
    MAX_SIMULATED_REQUESTS,
    BatchingSettings,
    make_arrivals,
    make_timing_profile,
    parse_steps,
    select_sequences,
    simulate_batching,
    summarize_steps,
)
from router.monitor.chrome_trace import iterate_chrome_trace
from router.monitor.monitor import BufferedStepRange, render_event
from router.monitor.observed_steps import round_seconds
from router.monitor.viewer_rights import Viewer
from router.scheduler.sequence import RequestPhase
from router.simulation.trace import RequestArrival, parse_plain_arrival

MAX_WAITING_SIMULATIONS = 4  # also of exports
MAX_TENANT_SIMULATIONS = 2  # that run or wait, also of exports, without an admin key
MAX_SIMULATED_PROMPT_TOKENS = 4_194_304  # of all requests of a simulation, whose prompts are made
MAX_TRACE_ROWS = 2048  # of the steps that one call in a thread renders, unless it is a single step
# Bytes of events that the system holds for a viewer. Its own bound of megabytes would hide for minutes that it does not
# read.
VIEWER_BUFFER_BYTES = 64 * 1024
TRACE_HEADERS = {"Content-Disposition": 'attachment; filename="weft-trace.json"'}
CAUSES = {str(phase): description for phase, description in PHASE_DESCRIPTIONS.items() if phase in {*RequestPhase}}
STEP_RANGE_PARAMETERS = {"since": parse_whole_number, "until": parse_whole_number}

TokenCount = Annotated[int, Field(ge=1)]


class SimulatedRequest(LenientBodyModel):
    """A request of a simulation, as in a plain trace of `weft simulate`."""

    at: Annotated[float, Field(ge=0, description="Seconds after the beginning at which it arrives.")]
    prompt_tokens: Annotated[TokenCount, Field(description="Length of its prompt.")]
    output_tokens: Annotated[TokenCount, Field(description="Number of tokens that it generates.")]


class SimulateRequest(LenientBodyModel):
    """Body of `/v1/engine/simulate`. Without `requests`, those of the buffered steps are simulated."""

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


class EngineInspectionRoutes(ServiceRoutes):
    """Handlers of `/v1/engine/state`, `/v1/engine/events`, `/v1/engine/trace`, `/v1/engine/simulate` and
    `/v1/engine/settings`."""

    def __init__(self, services: Services, settings: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(services)
        self._settings = settings
        # Simulations and pieces of exports run one after the other, so that they leave the engine its time.
        self._thread_lock = asyncio.Lock()
        # What runs or waits for its turn, by what it is; in all, and of each tenant without an admin key.
        self._num_running: Counter[str] = Counter()
        self._num_running_of_tenant: Counter[tuple[str, str]] = Counter()

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/engine/state", self.state), web.get("/v1/engine/events", self.events, allow_head=False),
                web.get("/v1/engine/trace", self.trace), web.post("/v1/engine/simulate", self.simulate),
                web.get("/v1/engine/settings", require_admin(self.settings))]

    async def settings(self, request: web.Request) -> web.Response:
        """Return all settings of the server, each with where it came from."""
        parse_query_parameters(request, {})
        return json_response({"settings": self._settings})

    async def state(self, request: web.Request) -> web.Response:
        parse_query_parameters(request, {})
        return json_text_response(dumps(self._describe_state(self._make_viewer(request))))

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Send the state, and then frames as long as the client stays."""
        since = parse_query_parameters(request, {"since": parse_whole_number}).get("since")
        viewer, reply_type = self._make_viewer(request), find_error_reply_type(request.path,
                                                                              self._services.config.compat)

        def render_state() -> bytes:
            return render_event("state", dumps(self._describe_state(viewer), separators=(",", ":")))

        with self._services.engine.monitor.watch(viewer, render_state, since) as feed:
            limit_send_buffer(request.transport)
            async with open_response_stream(
                    request, {}, self._services.config.slow_client_timeout,
                    lambda error: f"event: error\ndata: {reply_type.from_exception(error).to_json()}\n\n") as stream:
                async for data in feed.iterate_events():
                    stream.write(data)
                    if stream.is_paused:
                        await stream.drain()
        return stream.response

    async def trace(self, request: web.Request) -> web.StreamResponse:
        """Send the buffered steps in Chrome's trace-event format, rendered as fast as the client reads."""
        step_range = self._get_step_range(**parse_query_parameters(request, STEP_RANGE_PARAMETERS))
        viewer = self._make_viewer(request)
        described = self._services.engine.monitor.describe_sequences(step_range.sequences.values(), viewer)
        metadata = {"server": f"weft {VERSION}", "model": self._services.served_model.name,
                    "first_step": step_range.steps[0].number, "last_step": step_range.steps[-1].number}
        pieces = iterate_chrome_trace((json.loads(step.json_text) for step in step_range.steps),
                                      {entry["id"]: entry for entry in described}, metadata)
        num_steps = max(MAX_TRACE_ROWS // self._services.engine.monitor.settings.max_batch_size, 1)
        response = web.StreamResponse(headers=TRACE_HEADERS)
        response.content_type = "application/json"
        with self._limit_concurrency("exports", viewer):
            await response.prepare(request)
            while text := await self._run_in_turn(lambda: "".join(islice(pieces, num_steps))):
                await self._write_with_time_limit(response.write(text.encode()))
            await self._write_with_time_limit(response.write_eof())
        return response

    async def _write_with_time_limit(self, writing: Coroutine[Any, Any, None]) -> None:
        """Write to a client. Raises ConnectionResetError if it does not read for --slow-client-timeout seconds."""
        seconds = self._services.config.slow_client_timeout
        try:
            async with asyncio.timeout(seconds):
                await writing
        except TimeoutError:
            raise ConnectionResetError(f"the client did not read for {seconds} seconds") from None

    async def simulate(self, request: web.Request) -> web.Response:
        """Simulate requests under another way of batching, by the scheduler and the cost model of this server."""
        body = await read_body(request, SimulateRequest)
        engine, viewer = self._services.engine, self._make_viewer(request)
        self._check_simulation(body)
        given = body.requests is not None
        step_range = (engine.monitor.get_buffered_step_range() if given
                      else self._get_step_range(body.since or 0, body.until))
        sequences = [] if given else select_sequences(step_range)[:MAX_SIMULATED_REQUESTS]
        check_num_prompt_tokens(sum(simulated.prompt_tokens for simulated in body.requests or ())
                                + sum(sequence.num_prompt_tokens for sequence in sequences))
        settings = BatchingSettings(body.batching, body.max_batch_size, body.static_window_ms).to_scheduler_settings(
            self._services.config, engine.model_info)
        coefficients = engine.monitor.cost_coefficients
        described_sequences = engine.monitor.describe_sequences(sequences, viewer)

        def run() -> str:
            arrivals = parse_simulated_arrivals(body.requests or ()) if given else make_arrivals(sequences)
            described = described_sequences or [*map(describe_simulated_request, arrivals)]
            steps = parse_steps(step_range)
            timing_profile = make_timing_profile(steps, coefficients)
            simulated = simulate_batching(arrivals, settings, engine.model_info, timing_profile)
            submitted_at = {sequence.id: sequence.submitted_at + engine.monitor.clock_offset for sequence in sequences}
            for number, (entry, arrival, num_cached) in enumerate(
                    zip(described, arrivals, simulated.cached_tokens, strict=True), 1):
                entry |= {"source_id": entry["id"] or None, "id": number, "cached_tokens": num_cached,
                          "submitted_at": round_seconds(arrival.arrived_at)}
            return render_simulation(simulated.steps, {
                "batching": body.batching, "max_batch_size": settings.max_batch_size, "requests": len(arrivals),
                "summary": simulated.summary, "recorded": None if given else summarize_steps(steps, submitted_at),
                "sequences": described})

        with self._limit_concurrency("simulations", viewer):
            text = await self._run_in_turn(run)
        return json_text_response(text, ignored_fields_headers(request))

    @contextmanager
    def _limit_concurrency(self, name: str, viewer: Viewer) -> Iterator[None]:
        """Count what is under way by this name. Raises MonitorBusy."""
        if self._num_running[name] > MAX_WAITING_SIMULATIONS:
            raise MonitorBusy(f"{MAX_WAITING_SIMULATIONS} {name} wait already, as many as may")
        of_tenant = (name, viewer.tenant_name)
        if not viewer.is_admin and self._num_running_of_tenant[of_tenant] >= MAX_TENANT_SIMULATIONS:
            raise MonitorBusy(f"{MAX_TENANT_SIMULATIONS} {name} of this tenant run or wait already, as many as may")
        self._num_running[name] += 1
        self._num_running_of_tenant[of_tenant] += not viewer.is_admin
        try:
            yield
        finally:
            self._num_running[name] -= 1
            self._num_running_of_tenant[of_tenant] -= not viewer.is_admin
            self._num_running_of_tenant += Counter()  # without those of 0

    async def _run_in_turn(self, run: Callable[[], str]) -> str:
        async with self._thread_lock:
            return await asyncio.to_thread(run)

    def _check_simulation(self, body: SimulateRequest) -> None:
        """Raises InvalidRequest for what the server could not serve either."""
        if body.requests is not None and (body.since is not None or body.until is not None):
            raise InvalidRequest("`requests` cannot be given together with `since` or `until`")
        limit = self._services.validator.limits.max_total_tokens
        for index, given in enumerate(body.requests or ()):
            if (total := given.prompt_tokens + given.output_tokens) > limit:
                raise InvalidRequest(f"`requests.{index}` has {total} tokens, prompt and output together; the most are "
                                     f"{limit} (--max-total-tokens)")

    def _get_step_range(self, since: int = 0, until: int | None = None) -> BufferedStepRange:
        """Return the buffered steps. Raises the HTTP error 404 if there are none."""
        step_range = self._services.engine.monitor.get_buffered_step_range(since, until)
        if not step_range.steps:
            raise web.HTTPNotFound(text="no steps are buffered" + (" in this stretch" if since or until else "")
                                   + "; they are while somebody watches /v1/engine/events, and for five minutes after")
        return step_range

    def _make_viewer(self, request: web.Request) -> Viewer:
        client = request[CLIENT]
        return Viewer(client.tenant.name, client.is_admin, shows_text=self._services.config.ui_show_text)

    def _describe_state(self, viewer: Viewer) -> dict[str, Any]:
        state = self._services.engine.monitor.describe_state(viewer)
        return {"t": state.pop("t"), "step": state.pop("step"), "server": self._describe_server(viewer), **state,
                "causes": CAUSES}

    def _describe_server(self, viewer: Viewer) -> dict[str, Any]:
        services, engine = self._services, self._services.engine
        config, model_info, limits = services.config, engine.model_info, services.validator.limits
        settings = engine.monitor.settings
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
            "device": model_info.device, "dtype": model_info.dtype,
            "quantization": model_info.quantization or None, "num_shard": model_info.world_size,
            "exact": model_info.exact, "kinds": [*map(str, model_info.supported_kinds)],
            "adapters": services.validator.adapter_registry is not None,
            "max_active_adapters": settings.max_active_adapters, **engine.get_readiness(),
            "show_text": config.ui_show_text, "keys": bool(config.api_key or config.api_keys),
            "tenant": viewer.tenant_name, "role": "admin" if viewer.is_admin else "user"}


def limit_send_buffer(transport: asyncio.Transport | None) -> None:
    if transport is not None and (connection := transport.get_extra_info("socket")) is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, VIEWER_BUFFER_BYTES)


def render_simulation(steps: Sequence[Mapping[str, Any]], members: Mapping[str, Any]) -> str:
    """Return the JSON of a simulation, made step by step: one call for all would let no other thread run."""
    return f'{dumps(members)[:-1]},"steps":[{",".join([dumps(step) for step in steps])}]}}'


def check_num_prompt_tokens(num_tokens: int) -> None:
    """Raises InvalidRequest for more tokens than a simulation may have."""
    if num_tokens > MAX_SIMULATED_PROMPT_TOKENS:
        raise InvalidRequest(f"the prompts of all requests to simulate may have {MAX_SIMULATED_PROMPT_TOKENS} tokens "
                             f"together, got {num_tokens}; give fewer or shorter ones, or fewer steps by `since` and "
                             "`until`")


def parse_simulated_arrivals(requests: Any) -> list[RequestArrival]:
    arrivals = [parse_plain_arrival(number, given.model_dump()) for number, given in enumerate(requests, 1)]
    return sorted(arrivals, key=lambda arrival: arrival.arrived_at)


def describe_simulated_request(arrival: RequestArrival) -> dict[str, Any]:
    request = arrival.request
    return {"id": 0, "own": True, "request_id": None, "kind": str(request.kind), "tenant": None, "tenant_ordinal": 0,
            "adapter": None, "adapter_ordinal": 0, "prompt_tokens": len(request.prompt),
            "max_new_tokens": request.max_new_tokens}
