"""Spans sent over gRPC to a collector in this process."""

import logging
import socket
import threading
from typing import Any

import grpc
import pytest
from support.servers.span_sender import RecordingSpanSender
from support.servers.trace_collector import (
    PARENT_TRACEPARENT,
    SPAN_KIND_SERVER,
    STATUS_CODE_ERROR,
    TraceCollector,
    run_collector,
)

from shard.telemetry import otlp
from shard.telemetry.otlp import OtlpSpanSender
from shard.telemetry.span_export_interface import SpanSender, TraceSettings

pytestmark = pytest.mark.slow

TRACESTATE = "congo=t61rcWkgMzE"
MALFORMED_TRACEPARENTS = ("", "nonsense", PARENT_TRACEPARENT.upper(), PARENT_TRACEPARENT[:-1],
                          f"{PARENT_TRACEPARENT}-more", PARENT_TRACEPARENT.replace("00-", "ff-", 1),
                          f"00-{'0' * 32}-b7ad6b7169203331-01", f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
                          "0" * 10_000, PARENT_TRACEPARENT.replace("a", "\udcff"))


def record_request_spans(span_sender: SpanSender, **headers: str) -> str:
    """Record the span of a request with two children, and a child of another process."""
    span = span_sender.start_server_span("chat demo", headers, 1_000)
    span.add_child("queue", 1_100, 1_200, {"weft.wait_reason": "blocks"})
    span.add_child("prefill", 1_200, 1_300, {})
    if span.traceparent:
        span_sender.add_remote_child(span.traceparent, "prefill step", 1_210, 1_290, {"weft.rank": 1}, failed=False)
    span.end(1_500, {"gen_ai.usage.input_tokens": 3, "gen_ai.response.finish_reasons": ["stop"],
                     "gen_ai.request.stream": True, "gen_ai.latency.e2e": 0.5}, failed=True)
    return span.traceparent


@pytest.fixture
def send_request_spans() -> Any:
    """Function that sends the spans of a request with the given headers; it returns collector and traceparent."""
    def send_with_headers(**headers: str) -> tuple[TraceCollector, str]:
        reported_problems: list[str] = []
        with run_collector() as (collector, address):
            span_sender = OtlpSpanSender(TraceSettings(address, "loom"), "shard 1", reported_problems.append)
            traceparent = record_request_spans(span_sender, **headers)
            span_sender.close()
        assert reported_problems == []
        return collector, traceparent
    return send_with_headers


def test_remaining_spans_are_sent_on_close(send_request_spans: Any) -> None:
    collector, traceparent = send_request_spans()
    chat = collector.find_single_span("chat demo")
    assert (chat.span.kind, chat.span.status.code) == (SPAN_KIND_SERVER, STATUS_CODE_ERROR)
    assert traceparent.startswith(chat.traceparent[:-2])
    assert [below.span.name for below in collector.find_child_spans(chat)] == ["queue", "prefill", "prefill step"]
    assert all(chat.contains(below) for below in collector.spans)
    assert collector.num_calls == 1


def test_attribute_values_arrive_unchanged(send_request_spans: Any) -> None:
    collector, _ = send_request_spans()
    assert collector.find_single_span("chat demo").attributes == {
        "gen_ai.usage.input_tokens": 3, "gen_ai.response.finish_reasons": ["stop"], "gen_ai.request.stream": True,
        "gen_ai.latency.e2e": 0.5}
    assert collector.find_single_span("queue").attributes == {"weft.wait_reason": "blocks"}


def test_every_span_names_its_service_and_process(send_request_spans: Any) -> None:
    for collected_span in send_request_spans()[0].spans:
        assert (collected_span.resource_attributes["service.name"],
                collected_span.resource_attributes["weft.process"]) == ("loom", "shard 1")


def test_trace_of_the_caller_is_continued(send_request_spans: Any) -> None:
    collector, traceparent = send_request_spans(traceparent=PARENT_TRACEPARENT, tracestate=TRACESTATE)
    chat = collector.find_single_span("chat demo")
    assert (chat.parent_traceparent, chat.span.trace_state) == (PARENT_TRACEPARENT, TRACESTATE)
    assert {collected_span.trace_id for collected_span in collector.spans} == {PARENT_TRACEPARENT.split("-")[1]}
    assert traceparent != PARENT_TRACEPARENT


def test_malformed_parent_is_ignored() -> None:
    with run_collector() as (collector, address):
        sender = OtlpSpanSender(TraceSettings(address), "router", print)
        for header in MALFORMED_TRACEPARENTS:
            record_request_spans(sender, traceparent=header, tracestate="=,==\udcff" * 100)
        sender.close()
    assert [chat.parent_traceparent for chat in collector.find_spans("chat demo")] == [""] * len(MALFORMED_TRACEPARENTS)
    assert len({chat.trace_id for chat in collector.spans}) == len(MALFORMED_TRACEPARENTS)


def test_spans_of_an_unsampled_trace_are_not_sent(send_request_spans: Any) -> None:
    collector, traceparent = send_request_spans(traceparent=PARENT_TRACEPARENT.removesuffix("01") + "00")
    assert (collector.spans, traceparent) == ([], "")


def test_recording_sender_records_what_a_collector_gets(send_request_spans: Any) -> None:
    recording_sender, (collector, _) = RecordingSpanSender(), send_request_spans(traceparent=PARENT_TRACEPARENT)
    record_request_spans(recording_sender, traceparent=PARENT_TRACEPARENT)
    recorded = [(span.name, (span.started_ns, span.ended_ns), span.attributes, span.has_failed)
                for root_span in recording_sender.spans for span in (root_span, *root_span.children)]
    received = [(collected_span.span.name, collected_span.start_and_end_ns, collected_span.attributes,
                 collected_span.span.status.code == STATUS_CODE_ERROR) for collected_span in collector.spans]
    assert sorted(recorded, key=str) == sorted(received, key=str)
    chat, step = recording_sender.spans
    assert (chat.parent, step.parent) == (PARENT_TRACEPARENT, chat.traceparent)


def find_closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_missing_collector_is_reported_once(
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(otlp, "EXPORT_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
    reported_problems: list[str] = []
    sender = OtlpSpanSender(TraceSettings(f"127.0.0.1:{find_closed_port()}"), "router", reported_problems.append)
    record_request_spans(sender)
    sender.close()
    (message,) = reported_problems
    assert "UNAVAILABLE" in message
    assert caplog.records == []  # the library's own messages are suppressed


def test_collector_error_is_reported_again_after_a_success() -> None:
    reported_problems: list[str] = []
    with run_collector(grpc.StatusCode.UNIMPLEMENTED) as (collector, address):
        sender = OtlpSpanSender(TraceSettings(address), "router", reported_problems.append)
        for rejection_code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED, None,
                               grpc.StatusCode.PERMISSION_DENIED):
            collector.rejection_code = rejection_code
            record_request_spans(sender)
            sender._provider.force_flush()
        sender.close()
    assert [problem.rpartition("StatusCode.")[2] for problem in reported_problems] == [
        f"{code}, error details: told to refuse" for code in ("UNIMPLEMENTED", "PERMISSION_DENIED")]
    assert len(collector.spans) == 4


def test_close_does_not_wait_long_for_a_silent_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` returns after its own timeout, long before that of a call to the collector."""
    monkeypatch.setattr(otlp, "SHUTDOWN_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(otlp, "EXPORT_TIMEOUT_SECONDS", 100.0)
    reported_problems: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        sender = OtlpSpanSender(TraceSettings(f"http://127.0.0.1:{silent_server.getsockname()[1]}"), "router",
                                reported_problems.append)
        record_request_spans(sender)
        closing = threading.Thread(target=sender.close)
        closing.start()
        closing.join(20.0)
        assert not closing.is_alive()
    assert len(reported_problems) == 1


def test_library_logs_nothing_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    otlp.ErrorCapture()
    logging.getLogger("opentelemetry.any").error("so it is")
    assert caplog.records == []
