"""The context of a request, the headers that follow from it, and its span."""

import asyncio
import json

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from support.servers.expected_streams import make_text_events
from support.servers.span_sender import RecordingSpanSender

from router.engine.output_stream import FailedEvent
from router.errors import GenerationFailed, InvalidRequest, NotReady, Overloaded
from router.http.transport import body as body_module
from router.http.transport.auth import CLIENT, AuthenticatedClient
from router.http.transport.request_context_and_middleware import (
    REQUEST_COUNTER,
    RequestContext,
    add_request_id_header,
    response_headers,
)
from router.http.transport.services import ServedModel
from router.model_info import ModelInfo
from router.request import DEFAULT_TENANT, Tenant
from router.scheduler.sequence import RequestTimeline
from router.telemetry.instruments import Counter, MetricDefinition, MetricType
from router.telemetry.server_metrics import RequestRecord, RequestRecordStore


def make_context(request_ids=None, **headers):
    request = make_mocked_request("POST", "/", {name.replace("_", "-"): value for name, value in headers.items()})
    return RequestContext.from_request(request, request_ids or RequestRecordStore())


def test_client_can_set_the_request_id():
    assert make_context(x_request_id="order 66/a").request_id == "order 66/a"
    assert make_context(x_request_id="x" * 128).request_id == "x" * 128


@pytest.mark.parametrize("name", ["", "x" * 129, "é", "a\tb"])
def test_invalid_request_id_is_replaced(name):
    assert len(make_context(x_request_id=name).request_id) == 32


def test_amazon_trace_id_is_used_as_request_id():
    assert make_context(x_amzn_trace_id="Root=1").request_id == "Root=1"
    assert make_context(x_request_id="mine", x_amzn_trace_id="Root=1").request_id == "mine"


def test_each_prompt_of_a_request_has_its_own_id():
    several = make_context(x_request_id="mine")
    assert [several.for_prompt(index).request_id for index in range(3)] == ["mine", "mine.1", "mine.2"]


def test_generated_request_ids_are_unique():
    assert len({make_context().request_id for _ in range(3)}) == 3


def test_request_id_in_use_is_replaced():
    accounts = RequestRecordStore()
    accounts.add_unfinished(RequestRecord("mine", "", 1, 0.0, RequestTimeline(0.0)))
    assert make_context(accounts, x_request_id="mine").request_id != "mine"


def prepare_response(request):
    response = web.Response()
    asyncio.run(add_request_id_header(request, response))
    return response.headers["x-request-id"]


def test_response_has_the_id_of_the_request():
    request = make_mocked_request("POST", "/", {"x-request-id": "mine"})
    assert prepare_response(request) == "mine"
    accounts = RequestRecordStore()
    accounts.add_unfinished(RequestRecord("mine", "", 1, 0.0, RequestTimeline(0.0)))
    context = RequestContext.from_request(request, accounts)
    assert prepare_response(request) == context.request_id != "mine"


@pytest.mark.parametrize("name", ["", "x" * 129, "é", "a\tb"])
def test_response_repeats_no_invalid_id(name):
    assert len(prepare_response(make_mocked_request("GET", "/", {"x-request-id": name}))) == 32


def test_tenant_comes_from_the_api_key():
    request = make_mocked_request("POST", "/")
    assert RequestContext.from_request(request, RequestRecordStore()).tenant is DEFAULT_TENANT
    request[CLIENT] = AuthenticatedClient(Tenant("a"))
    assert RequestContext.from_request(request, RequestRecordStore()).tenant == Tenant("a")


def test_timeout_counts_from_the_arrival_of_the_request():
    caller = make_context(x_request_timeout_ms="2500")
    assert caller.deadline == caller.arrived_at + 2.5
    assert make_context().deadline is None


@pytest.mark.parametrize("text", ["1", "0.5", "1500.", "000000000000250"])
def test_positive_timeout_values_are_accepted(text):
    caller = make_context(x_request_timeout_ms=text)
    assert caller.deadline == caller.arrived_at + float(text) / 1000


@pytest.mark.parametrize("text", ["", "0", "0.000", "-5", "nan", "inf", "1e3", "1_000", "5s", "0x10", "9" * 400, "٣"])
def test_invalid_timeout_header_is_rejected(text):
    with pytest.raises(InvalidRequest, match="the header `x-request-timeout-ms` must be") as refused:
        _ = make_context(x_request_timeout_ms=text).deadline
    assert len(str(refused.value)) < 500


def test_request_is_counted_once():
    request, counter = make_mocked_request("POST",
                                           "/"), Counter(MetricDefinition(MetricType.COUNTER, "came", "Came."), ())
    request[REQUEST_COUNTER] = counter
    for _ in range(2):
        RequestContext.from_request(request, RequestRecordStore())
    assert counter.value == 1


def test_headers_report_compute_device_and_exactness():
    facts = ModelInfo("m", "cuda", "bfloat16", 512, 4096, 16, 100, world_size=2)
    assert response_headers(make_mocked_request("POST", "/"), facts, 5) == {
        "x-compute-type": "2-cuda", "x-compute-characters": "5", "x-weft-exact": "0"}


PARENT_TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CHAT_BODY = {"messages": [{"role": "user", "content": "a secret"}], "max_tokens": 4}
SECRET_BODY = {"inputs": "a secret", "parameters": {"max_new_tokens": 4}}


@pytest.fixture
def send_and_get_span(serve):
    """Send one request and return its span, or None, and the engine."""
    def run(path, body, *scripts, refusal=None, headers=()):
        span_sender = RecordingSpanSender()

        async def scenario(client, engine):
            if refusal is not None:
                engine.submit_errors.append(refusal)
            answer = await client.post(path, data=json.dumps(body),
                                       headers=[("Content-Type", "application/json"), *headers])
            await answer.read()
            return engine

        engine = serve(scenario, *scripts, served_model=ServedModel("demo"), sender=span_sender)
        assert len(span_sender.spans) <= 1
        return (span_sender.spans or [None])[0], engine
    return run


@pytest.mark.parametrize(("path", "body", "name"), [
    ("/v1/chat/completions", CHAT_BODY, "chat demo"),
    ("/invocations", CHAT_BODY, "chat demo"),
    ("/generate", SECRET_BODY, "text_completion demo"),
    ("/", SECRET_BODY, "text_completion demo"),
    ("/v1/completions", {"prompt": "a secret", "max_tokens": 4}, "text_completion demo"),
    ("/vertex", {"instances": [SECRET_BODY, SECRET_BODY]}, "text_completion demo"),
])
def test_generation_request_has_a_span(send_and_get_span, path, body, name):
    span, engine = send_and_get_span(path, body)
    assert (span.name, span.has_failed) == (name, False)
    assert (span.attributes["url.path"], span.attributes["http.response.status_code"]) == (path, 200)
    assert span.attributes["gen_ai.request.max_tokens"] == 4
    for stream in engine.streams:
        assert engine.get_request_record(stream.request.id).traceparent == span.traceparent


def test_span_contains_no_prompt_text(send_and_get_span):
    for path, body in (("/generate", SECRET_BODY), ("/v1/chat/completions", CHAT_BODY),
                       ("/generate_stream", SECRET_BODY)):
        span, _ = send_and_get_span(path, body)
        assert "secret" not in repr(span)


def test_other_routes_have_no_span(send_and_get_span):
    for path in ("/tokenize", "/nowhere"):
        assert send_and_get_span(path, {"inputs": "a"})[0] is None


@pytest.mark.parametrize(("path", "body"), [
    ("/generate_stream", SECRET_BODY), ("/v1/chat/completions", CHAT_BODY | {"stream": True}),
    ("/v1/completions", {"prompt": ["a", "b"], "stream": True})])
def test_stream_span_ends_with_the_stream(send_and_get_span, path, body):
    span, _ = send_and_get_span(path, body)
    assert span.attributes["gen_ai.request.stream"] is True
    assert "gen_ai.usage.input_tokens" in span.attributes


@pytest.mark.parametrize("max_joined_bytes", [1000, 1])
def test_span_without_streaming_is_not_marked_as_a_stream(send_and_get_span, monkeypatch, max_joined_bytes):
    """Also where the answer is long, and sent in pieces."""
    monkeypatch.setattr(body_module, "MAX_JOINED_BYTES", max_joined_bytes)
    assert "gen_ai.request.stream" not in send_and_get_span("/generate", SECRET_BODY)[0].attributes


@pytest.mark.parametrize(("headers", "parent"), [
    ([], ""),
    ([("traceparent", PARENT_TRACEPARENT)], PARENT_TRACEPARENT),
    ([("traceparent", PARENT_TRACEPARENT), ("tracestate", "a=1"), ("tracestate", "b=2")], PARENT_TRACEPARENT),
    ([("traceparent", PARENT_TRACEPARENT), ("traceparent", PARENT_TRACEPARENT)], ""),
])
def test_span_parent_comes_from_the_traceparent_header(send_and_get_span, headers, parent):
    assert send_and_get_span("/generate", SECRET_BODY, headers=headers)[0].parent == parent


@pytest.mark.parametrize(("refusal", "error", "status", "failed"), [
    (Overloaded("too many"), "overloaded", 429, False),
    (NotReady("no shards"), "overloaded", 503, True),
    (GenerationFailed("broken"), "generation", 424, True),
    (RuntimeError("a mistake"), "incomplete", 500, True),
])
def test_failed_request_span_has_error_type_and_status(send_and_get_span, refusal, error, status, failed):
    span, _ = send_and_get_span("/generate", SECRET_BODY, refusal=refusal)
    assert (span.attributes["error.type"], span.attributes["http.response.status_code"]) == (error, status)
    assert span.has_failed == failed
    assert span.children == []


def test_invalid_request_has_a_span(send_and_get_span):
    span, _ = send_and_get_span("/generate", {"inputs": "", "parameters": {}})
    assert (span.attributes["error.type"], span.attributes["http.response.status_code"]) == ("validation", 422)
    assert not span.has_failed


def test_failed_stream_span_is_marked_as_failed(send_and_get_span):
    span, _ = send_and_get_span("/generate_stream", SECRET_BODY,
                                [*make_text_events("we")[:1], FailedEvent(GenerationFailed("broken"))])
    assert (span.attributes["error.type"], span.attributes["http.response.status_code"]) == ("generation", 200)
    assert span.has_failed


def test_client_disconnect_ends_the_span(serve):
    span_sender = RecordingSpanSender()

    async def scenario(client, engine):
        task = asyncio.create_task(client.post("/generate", json=SECRET_BODY))
        await engine.request_received.wait()
        task.cancel()
        await engine.client_disconnected.wait()

    serve(scenario, [], served_model=ServedModel("demo"), sender=span_sender)
    (span,) = span_sender.spans
    assert (span.attributes["error.type"], span.has_failed) == ("dropped", False)
    assert "http.response.status_code" not in span.attributes
