"""Services that the handlers of all dialects use: the engine, the validator and the settings, and functions that run
requests with them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from aiohttp import web

from router.config import RouterConfig
from router.engine.resource_controller import ResourceController
from router.engine.stream import RequestStream
from router.errors import Cancelled
from router.http.transport.metrics import FAILURE_TYPE
from router.http.transport.outputs import GenerationOutput, OutputCollector
from router.http.transport.request_context import RequestContext
from router.http.transport.sse import EventStream, PumpFlusher, open_event_stream
from router.model_info import ModelInfo
from router.request import Request, Tenant
from router.telemetry.server_metrics import RequestRecord, ServerMetrics
from router.validation.validator import RequestValidator, ValidatedRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model's name and notice, as clients see them."""

    name: str = ""
    notice: str = ""  # what users should know about the model


class EngineClient(Protocol):
    """Interface of the engine that the dialects use."""

    @property
    def model_info(self) -> ModelInfo: ...

    def submit(self, request: Request, arrived_at: float | None = None, traceparent: str = "") -> RequestStream: ...

    def get_request_record(self, request_id: str) -> RequestRecord | None: ...

    def can_use_request_id(self, request_id: str, tenant: Tenant) -> bool: ...

    def why_unavailable(self) -> str: ...

    @property
    def resource_controller(self) -> ResourceController: ...

    @property
    def server_metrics(self) -> ServerMetrics: ...

    def metrics_page(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Services:
    """Services that every dialect uses."""

    engine: EngineClient
    validator: RequestValidator
    config: RouterConfig
    served_model: ServedModel
    pump_flusher: PumpFlusher

    def submit(self, validated_request: ValidatedRequest, context: RequestContext) -> RequestStream:
        if context.request_span is None:
            return self.engine.submit(validated_request.request, context.arrived_at)
        stream = self.engine.submit(validated_request.request, context.arrived_at, context.request_span.traceparent)
        record = self.engine.get_request_record(validated_request.request.id)
        assert record is not None, "it was opened just now"
        context.request_span.add_sequence(validated_request, record)
        return stream

    @property
    def is_tgi(self) -> bool:
        """Whether to reproduce quirks of text-generation-inference (--compat tgi)."""
        return self.config.compat == "tgi"

    @property
    def is_lorax(self) -> bool:
        return self.config.compat == "lorax"


@asynccontextmanager
async def open_response_stream(request: web.Request, headers: Mapping[str, str], slow_client_timeout: float,
                               render_error: Callable[[Exception], str]) -> AsyncIterator[EventStream]:
    """Open an event stream for the block. An exception of the block becomes the last event, rendered by `render_error`;
    Cancelled and ConnectionError abort the connection."""
    async with open_event_stream(request, headers, slow_client_timeout) as event_stream:
        try:
            yield event_stream
            if event_stream.failure is not None:
                request[FAILURE_TYPE] = type(event_stream.failure)
        except (Cancelled, ConnectionError) as error:
            request[FAILURE_TYPE] = type(error)
            event_stream.abort_connection()
        except Exception as error:
            request[FAILURE_TYPE] = type(error)
            event_stream.write(render_error(error).encode())


async def generate_all(services: Services, validated_requests: Sequence[ValidatedRequest],
                       context: RequestContext) -> list[GenerationOutput]:
    """Return the outputs of all choices. If one fails or the client disconnects, all are cancelled."""
    with submit_all(services, validated_requests, context) as streams:
        return await gather_or_cancel(OutputCollector(*pair).wait_for_output()
                                      for pair in zip(streams, validated_requests, strict=True))


@contextmanager
def submit_all(services: Services, validated_requests: Sequence[ValidatedRequest],
               context: RequestContext) -> Iterator[list[RequestStream]]:
    with ExitStack() as exit_stack:
        streams = []
        for validated_request in validated_requests:
            streams.append(services.submit(validated_request, context))
            exit_stack.callback(streams[-1].close)
        yield streams


async def gather_or_cancel(coroutines: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """Run coroutines concurrently, return their results. Raises the first failure, not an ExceptionGroup."""
    coroutine_list = [*coroutines]
    if len(coroutine_list) == 1:
        return [await coroutine_list[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in coroutine_list]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
