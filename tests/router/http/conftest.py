"""Fixtures: the application over a scripted engine, and HTTP clients for it."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
import tokenizers
import uvloop
from aiohttp.test_utils import TestClient, TestServer
from support.servers.expected_streams import make_finished_timeline, make_text_events
from support.servers.scripted_adapters import make_preloaded_adapters

from router.api_keys import ApiKeys
from router.config import RouterConfig
from router.engine.client_streams import ArrivingRequests
from router.engine.output_stream import PoolingEvent, RequestStream, StreamEvent
from router.http.server import PROTOCOL_OPTIONS, create_app
from router.http.transport.services import ServedModel
from router.model_info import ModelInfo
from router.monitor.monitor import EngineMonitor, Readiness
from router.request import LoadableResource, Request, RequestKind, Tenant, TokenClassificationOutput
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import RequestTimeline
from router.scheduler.settings import SchedulerSettings
from router.telemetry.server_metrics import (
    NO_ADAPTER_NAMES,
    AdapterNames,
    RequestRecord,
    RequestRecordStore,
    ServerMetrics,
)
from router.text.chat_template import simulated_model_template
from router.text.prompt_encoder import TokenLimits
from router.text.tokenizer import ResumedText, Tokenizer, create_byte_tokenizer
from router.validation.validator import RequestValidator

CHAT_TEMPLATE = simulated_model_template()


class ScriptedEngine:
    """Double of the engine that answers each request with the next script."""

    def __init__(self, *scripts: list[StreamEvent]) -> None:
        self.model_info = ModelInfo("loom", "cpu", "float32", vocabulary_size=512, max_positions=2048, block_size=16,
                                    num_blocks=100, exact=True)
        scheduler = Scheduler(SchedulerSettings(), self.model_info)
        self.server_metrics = ServerMetrics(scheduler, TokenLimits(1599, 1600), 1)
        self.monitor = EngineMonitor(scheduler, self.server_metrics, list, lambda _: "", self.get_readiness)
        self.has_shards = True
        self.scripts = [*scripts]
        self.submit_errors: list[Exception] = []
        self.unavailable_reason = ""
        self.streams: list[RequestStream] = []
        self.request_records = RequestRecordStore()
        self.disconnected_requests: list[Request] = []
        self.request_received = asyncio.Event()  # set by the first request
        self.client_disconnected = asyncio.Event()  # set when a client disconnects
        self.arriving_requests = ArrivingRequests()

    @property
    def requests(self) -> list[Request]:
        return [stream.request for stream in self.streams]

    def submit(self, request: Request, arrived_at: float | None = None, traceparent: str = "",
               resumed_text: ResumedText | None = None) -> RequestStream:
        if self.submit_errors:
            raise self.submit_errors.pop()
        timeline = RequestTimeline(time.monotonic())
        self.request_records.add_unfinished(RequestRecord(
            request.id, request.tenant.name, len(request.prompt), arrived_at or timeline.submitted_at, timeline,
            traceparent=traceparent))
        stream = RequestStream(request, 262_144, lambda: None, lambda: None, lambda: self._on_disconnect(request))
        stream.resumed_text = resumed_text
        self.streams.append(stream)
        self.request_received.set()
        for event in self.scripts.pop(0) if self.scripts else default_events(request):
            stream.put(event)
        return stream

    def copy_request_records_except(self, record: RequestRecord) -> list[RequestRecord]:
        return self.request_records.copy_records_except(record)

    def get_request_record(self, request_id: str) -> RequestRecord | None:
        return self.request_records.get(request_id)

    def find_prompt_records(self, first: RequestRecord) -> list[list[RequestRecord]]:
        return self.request_records.find_records_by_prompt(first)

    def add_refused_request(self, record: RequestRecord) -> None:
        self.request_records.add_refused(record)

    def find_latest_request_records(self, tenant_name: str, max_records: int) -> list[RequestRecord]:
        return self.request_records.find_latest(tenant_name, max_records)

    def can_use_request_id(self, request_id: str, tenant: Tenant) -> bool:
        return self.request_records.can_use_request_id(request_id, tenant)

    def why_unavailable(self) -> str:
        return self.unavailable_reason

    def get_readiness(self) -> Readiness:
        return {"ready": not self.unavailable_reason, "not_ready_reason": self.unavailable_reason or None,
                "has_shards": self.has_shards}

    def render_metrics_page(self, adapter_names: AdapterNames = NO_ADAPTER_NAMES) -> str:
        return self.server_metrics.render(is_ready=not self.unavailable_reason, has_shards=True,
                                          adapter_names=adapter_names)

    def _on_disconnect(self, request: Request) -> None:
        self.disconnected_requests.append(request)
        self.client_disconnected.set()


def default_events(request: Request) -> list[StreamEvent]:
    """Return default events: a text, a vector whose first value is the prompt's length, or one label for all tokens."""
    if request.kind is RequestKind.GENERATE:
        return make_text_events("weft")
    num_tokens = len(request.prompt)
    output = ([float(num_tokens), *[0.0] * 15] if request.kind is RequestKind.EMBED
              else TokenClassificationOutput([0] * num_tokens, [0.5] * num_tokens))
    return [PoolingEvent(output, make_finished_timeline(queue_seconds=0.25, prefill_seconds=0.125))]


def make_grammar_resource(kind: str, _: str) -> LoadableResource:
    """Give every grammar the same number."""
    return LoadableResource(kind, 1)


@pytest.fixture
def infill_tokenizer() -> Tokenizer:
    """The tokenizer of bytes with the tokens of Qwen2.5-Coder around a place to fill, from 257 on."""
    tokenizer = tokenizers.Tokenizer.from_str(create_byte_tokenizer().path_or_content)
    tokenizer.add_tokens([tokenizers.AddedToken(f"<|fim_{name}|>", normalized=False)
                          for name in ("prefix", "suffix", "middle", "pad")])
    return Tokenizer(tokenizer, end_tokens=[256])


UNNAMED_MODEL = ServedModel()
Scenario = Callable[[TestClient, ScriptedEngine], object]


@pytest.fixture
def serve():
    """Run a scenario with a client of the application; `facts` override fields of its `model_info`."""
    def run(scenario, *scripts, config=None, template=CHAT_TEMPLATE, served_model=UNNAMED_MODEL, sender=None,
            store=None, grammars=False, tokenizer=None, **facts):
        async def main():
            config_ = config or RouterConfig()
            engine = ScriptedEngine(*scripts)
            engine.model_info = replace(engine.model_info, grammars=grammars, **facts)
            adapters = None if store is None else await make_preloaded_adapters(config_, store)
            with closing(RequestValidator(config_, engine.model_info, tokenizer or create_byte_tokenizer(), template,
                                          make_grammar_resource if grammars else None,
                                          adapter_registry=adapters)) as validator:
                app = create_app(engine, validator, config_, ApiKeys.from_config(config_), served_model,
                                 span_sender=sender)
                server = TestServer(app)
                await server.start_server(**PROTOCOL_OPTIONS)
                async with TestClient(server) as client:
                    return await scenario(client, engine)
        return uvloop.run(main())  # the router's event loop
    return run


@pytest.fixture
def post(serve):
    """Post a body, or the fields of a JSON body, and return status, headers and text of the answer."""
    def run(path, *scripts, data=None, headers=None, config=None, template=CHAT_TEMPLATE, store=None, **body):
        async def scenario(client, engine):
            content = json.dumps(body) if data is None else data
            answer = await client.post(path, data=content,
                                       headers={"Content-Type": "application/json"} | (headers or {}))
            return answer.status, answer.headers, await answer.text()
        return serve(scenario, *scripts, config=config, template=template, store=store)
    return run


def parse_sse_events(text: str) -> list[dict]:
    assert text.endswith("\n\n")
    lines = text.removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]
