"""Tests of `--otlp-endpoint` with real processes and a collector that receives their spans."""

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from support.servers.trace_collector import (
    PARENT_TRACEPARENT,
    SPAN_KIND_SERVER,
    CollectedSpan,
    TraceCollector,
    run_collector,
)
from support.servers.weft_process import SIMULATED_MODEL, WeftProcess, iter_stream_events, run_weft_process

pytestmark = pytest.mark.slow

PROMPT = "all that is woven " * 20  # takes several steps of at most 64 prompt tokens


def send_chat(weft: WeftProcess, **headers: str) -> str:
    """Send a chat and return its request id."""
    body = json.dumps({"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5, "seed": 7}).encode()
    head = {"content-type": "application/json", **headers}
    with urlopen(Request(f"{weft.url}/v1/chat/completions", body, head)) as response:
        assert json.load(response)["usage"]["completion_tokens"] == 5
        return str(response.headers["x-request-id"])


@pytest.fixture(scope="module")
def collected_traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TraceCollector, str]]:
    """Collect the spans of two shards and their router: a chat within a client's trace, and a stream.

    Yield the collector and the request id of the chat.
    """
    with run_collector() as (collector, address):
        settings = ("--num-shard", "2", "--otlp-endpoint", address, "--max-batch-prefill-tokens", "64")
        with run_weft_process(tmp_path_factory.mktemp("served"), SIMULATED_MODEL, *settings) as weft:
            name = send_chat(weft, traceparent=PARENT_TRACEPARENT, tracestate="congo=t61rcWkgMzE")
            assert len(list(iter_stream_events(weft.post_prompt("/generate_stream", 3)))) == 3
            weft.send_signal(signal.SIGTERM)
            assert weft.wait_for_exit()[0] == 0
        yield collector, name


@pytest.fixture
def collector(collected_traces: tuple[TraceCollector, str]) -> TraceCollector:
    return collected_traces[0]


@pytest.fixture
def chat_span(collector: TraceCollector) -> CollectedSpan:
    return collector.find_single_span(f"chat {SIMULATED_MODEL}")


def test_request_span_belongs_to_the_client_trace(
        collected_traces: tuple[TraceCollector, str], chat_span: CollectedSpan) -> None:
    assert (chat_span.parent_traceparent, chat_span.span.trace_state,
            chat_span.span.kind) == (PARENT_TRACEPARENT, "congo=t61rcWkgMzE", SPAN_KIND_SERVER)
    expected = {"gen_ai.operation.name": "chat", "gen_ai.response.id": collected_traces[1], "gen_ai.request.seed": 7,
                "gen_ai.usage.output_tokens": 5, "gen_ai.response.finish_reasons": ["length"],
                "http.response.status_code": 200}
    assert chat_span.attributes | expected == chat_span.attributes
    assert "woven" not in repr(collected_traces[0].spans)


def test_phases_of_a_request_are_consecutive_child_spans(collector: TraceCollector,
                                                         chat_span: CollectedSpan) -> None:
    own = [part for part in collector.find_child_spans(chat_span) if part.span.name != "prefill step"]
    assert [part.span.name for part in own] == ["validation", "queue", "prefill", "decode"]
    assert all(chat_span.contains(part) for part in own)
    assert [part.start_and_end_ns[0] for part in own[1:]] == [part.start_and_end_ns[1] for part in own[:-1]]


def test_every_shard_reports_a_span_for_every_prefill_step(
        collector: TraceCollector, chat_span: CollectedSpan) -> None:
    """All processes share the clock of this machine, so the shards' spans are within the router's."""
    steps = [part for part in collector.find_child_spans(chat_span) if part.span.name == "prefill step"]
    for rank in (0, 1):
        own = [part.attributes for part in steps if part.attributes["weft.rank"] == rank]
        assert len(own) > 2
        assert sum(part["weft.chunk.tokens"] for part in own) == chat_span.attributes["gen_ai.usage.input_tokens"]
        assert len({part["weft.step"] for part in own}) == len(own)
    assert all(chat_span.contains(part) for part in steps)


def test_request_without_a_parent_starts_a_new_trace(collector: TraceCollector, chat_span: CollectedSpan) -> None:
    stream = collector.find_single_span(f"text_completion {SIMULATED_MODEL}")
    assert (stream.parent_traceparent, stream.attributes["gen_ai.request.stream"]) == ("", True)
    assert stream.trace_id != chat_span.trace_id
    assert {part.span.name for part in collector.find_child_spans(stream)} >= {"prefill", "prefill step"}


def test_processes_share_a_service_name_and_differ_in_process(collector: TraceCollector) -> None:
    senders = {(part.resource_attributes["service.name"], part.resource_attributes["weft.process"])
               for part in collector.spans}
    assert senders == {("weft", "router"), ("weft", "shard 0"), ("weft", "shard 1")}


def test_unreachable_collector_is_harmless_and_logged_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        unused_address = f"127.0.0.1:{listener.getsockname()[1]}"
    with run_weft_process(tmp_path, SIMULATED_MODEL, "--otlp-endpoint", unused_address) as weft:
        for _ in range(3):
            send_chat(weft)
        weft.send_signal(signal.SIGTERM)
        code, errors = weft.wait_for_exit()
    assert (code, errors.count("traces are lost")) == (0, 1)
    assert "Traceback" not in errors


def test_invalid_parent_header_is_ignored(tmp_path: Path) -> None:
    with run_collector() as (collector, address), run_weft_process(tmp_path, SIMULATED_MODEL, "--otlp-endpoint",
                                                                   address) as weft:
        send_chat(weft, traceparent="00-woven", tracestate="=")
        weft.send_signal(signal.SIGTERM)
        assert weft.wait_for_exit()[0] == 0
        assert collector.find_single_span(f"chat {SIMULATED_MODEL}").parent_traceparent == ""
