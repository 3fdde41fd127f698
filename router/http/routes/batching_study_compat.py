"""Dialect of the effective-batching study: `POST /inference`, and `GET /stats` with the numbers of its plots. The
latency of a request, sent in a header, starts when a handler takes it: with `--max-handlers N`, as soon as fewer than N
other requests have one. Throughput is tokens divided by the sum of all latencies, not by wall-clock time."""

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

from aiohttp import web

from router.errors import InvalidRequest
from router.http.transport.body import LenientBodyModel, json_response, read_body
from router.http.transport.request_context_and_middleware import RequestContext, ignored_fields_headers
from router.http.transport.services import ServiceRoutes, Services, generate_all
from router.text.prompt_encoder import DialectParameterNames
from router.validation.validator import GenerationInput

# reject, never shorten, what is too long
PARAMETER_NAMES = DialectParameterNames("prompt", "num_tokens", truncate="", max_required_new_tokens=sys.maxsize)
# the study's names of --batching, where they differ
STUDY_BATCHING_NAMES = {"none": "nobatch", "continuous": "dynamic"}
LATENCY_HEADER = "x-weft-seconds"  # latency as in /stats: clients cannot see when a handler took the request
OUTPUT_FOLDER = Path("data")  # relative to the server's working directory
USAGE_HINT = (
    "POST a prompt and num_tokens to /inference; GET /stats for latencies and throughput of all that were answered\n")

logger = logging.getLogger(__name__)


class StudyInferenceRequest(LenientBodyModel):
    """Body of `POST /inference` in the effective-batching study's API: a prompt and the exact number of tokens to
    generate."""

    prompt: str
    num_tokens: Any

    def to_generation_input(self, context: RequestContext) -> GenerationInput:
        """Return a request for exactly `num_tokens` sampled tokens, beyond end tokens if need be. `num_tokens` may be
        anything that `int` accepts, as in the study's server."""
        try:
            num_tokens = int(self.num_tokens)
        except (TypeError, ValueError, OverflowError):
            raise InvalidRequest(f"`num_tokens` must be a number, got {self.num_tokens!r:.100}") from None
        if num_tokens < 1:
            raise InvalidRequest(f"`num_tokens` must be at least 1, got {num_tokens}")
        return GenerationInput(prompt=self.prompt, parameter_names=PARAMETER_NAMES,
                               max_new_tokens=num_tokens, do_sample=True, ignore_eos=True,
                               tenant=context.tenant, request_id=context.request_id, deadline=context.deadline)


class LatencyStats:
    """Latencies of answered requests, by the number of tokens that they asked for."""

    def __init__(self) -> None:
        self._totals_by_num_tokens: dict[int, tuple[int, float]] = {}  # number of requests and their summed seconds

    def add_request(self, num_tokens: int, seconds: float) -> None:
        num_requests, previous_seconds = self._totals_by_num_tokens.get(num_tokens, (0, 0.0))
        self._totals_by_num_tokens[num_tokens] = num_requests + 1, previous_seconds + seconds

    def to_json(self) -> dict[str, float | None]:
        totals = [(length, count, seconds) for length, (count, seconds) in self._totals_by_num_tokens.items()]
        num_requests, total_seconds = sum(count for _, count, _ in totals), sum(seconds for *_, seconds in totals)
        total_tokens = sum(length * count for length, count, _ in totals)
        return {"latency-per-token": (sum(seconds / length for length, _, seconds in totals) / num_requests
                                      if num_requests else None),
                "throughput": total_tokens / total_seconds if total_seconds else None,
                "total-tokens-handled": total_tokens, "total-elapsed-time": total_seconds}

    def to_csv(self) -> str:
        """Return CSV lines of a number of tokens and the mean latency in seconds."""
        return "".join(f"{length},{seconds / count}\n"
                       for length, (count, seconds) in self._totals_by_num_tokens.items())


class BatchingStudyCompatRoutes(ServiceRoutes):
    """Handlers of the effective-batching study's API, enabled by --dialect batching."""

    def __init__(self, services: Services, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(services)
        self._now = now
        config = services.config
        self._handler_slots: AbstractAsyncContextManager[Any] = (
            asyncio.Semaphore(config.max_handlers) if config.max_handlers else nullcontext())
        self._csv_file = OUTPUT_FOLDER / f"token_data_{STUDY_BATCHING_NAMES.get(config.batching, config.batching)}.csv"
        self._latency_stats = LatencyStats()

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/inference", self.inference), web.get("/stats", self.get_stats),
                web.post("/", self.get_usage_hint)]

    async def inference(self, request: web.Request) -> web.Response:
        async with self._handler_slots:
            started_at, context = self._now(), RequestContext.from_request(request, self._services.engine)
            inference_request = await read_body(request, StudyInferenceRequest, any_media_type=True)
            validated_requests = await self._services.validator.validate(inference_request.to_generation_input(context))
            [answer] = await generate_all(self._services, validated_requests, context)
            seconds = self._now() - started_at
            self._latency_stats.add_request(answer.final_event.num_tokens, seconds)
        return json_response({"completion": inference_request.prompt + answer.final_event.text},
                             ignored_fields_headers(request) | {LATENCY_HEADER: f"{seconds:.6f}"})

    async def get_stats(self, _: web.Request) -> web.Response:
        await asyncio.to_thread(write_csv_file, self._csv_file, self._latency_stats.to_csv())
        return json_response(self._latency_stats.to_json())

    async def get_usage_hint(self, _: web.Request) -> web.Response:
        return web.Response(text=USAGE_HINT)


def write_csv_file(path: Path, csv_lines: str) -> None:
    """Write the file. Failures are only logged, so that /stats still answers."""
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(csv_lines)
    except OSError as error:
        logger.warning("cannot write %s: %s", path, error.strerror)
