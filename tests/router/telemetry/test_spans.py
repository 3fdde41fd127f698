"""Spans of a request: times, attributes and usage."""

import time

import pytest
from support.servers.span_sender import RecordingSpanSender

from router.request import FinishReason, Request, SamplingParams
from router.scheduler.sequence import RequestPhase, RequestTimeline
from router.telemetry.server_metrics import RequestRecord
from router.telemetry.spans import (
    CHAT_OPERATION,
    EMBEDDINGS_OPERATION,
    MAX_SPANS_PER_SEQUENCE,
    MAX_TRACED_SEQUENCES,
    TEXT_COMPLETION_OPERATION,
    RequestSpanFactory,
)
from router.validation.validator import ValidatedRequest

ARRIVED_AT = 100.0
SECOND_NS = 10**9
PHASE_CHANGES = ((101.0, RequestPhase.QUEUE), (102.0, RequestPhase.NO_FREE_BLOCKS), (105.0, RequestPhase.PREFILL),
                 (106.0, RequestPhase.DECODE))


@pytest.fixture(autouse=True)
def fixed_clocks(monkeypatch):
    """Fix the monotonic clock and the system clock at the end of the tests' requests."""
    monkeypatch.setattr("router.telemetry.spans.now", lambda: 200.0)
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_200 * SECOND_NS)


def make_record(*phase_changes, ended_at=110.0, name="mine", **fields):
    timeline = RequestTimeline(*phase_changes[0])
    for moment, cause in phase_changes[1:]:
        timeline.enter_phase(cause, moment)
    timeline.end(ended_at)
    timeline.num_prefix_hit_tokens = 2
    return RequestRecord(name, "", 3, ARRIVED_AT, timeline,
                         **{"num_generated": 5, "finish_reason": FinishReason.END_TOKEN} | fields)


def make_validated_request(seed=None, **fields):
    return ValidatedRequest(Request("mine", (1, 2, 3), 7, **fields), seed)


def make_span(*sequences, operation=TEXT_COMPLETION_OPERATION, outcome=None, failed=False, **headers):
    notes = RecordingSpanSender()
    traced = RequestSpanFactory(notes, "demo").start_request_span(operation, "mine", headers, ARRIVED_AT)
    for text in sequences:
        traced.add_sequence(*text)
    traced.end_request(outcome or {}, is_server_error=failed)
    (span,) = notes.spans
    assert span.traceparent == traced.traceparent
    return span


def test_span_is_named_after_the_operation():
    span = make_span(operation=CHAT_OPERATION, outcome={"url.path": "/v1"}, failed=True, traceparent="00-a")
    assert (span.name, span.parent, span.has_failed) == ("chat demo", "00-a", True)
    assert span.attributes == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "weft", "gen_ai.request.model": "demo",
        "gen_ai.response.model": "demo", "gen_ai.response.id": "mine", "url.path": "/v1"}


def test_span_times_are_calendar_times():
    span = make_span()
    assert (span.started_ns, span.ended_ns) == (1_000_100 * SECOND_NS, 1_000_200 * SECOND_NS)


def test_phases_are_child_spans_without_gaps():
    span = make_span((make_validated_request(), make_record(*PHASE_CHANGES)))
    assert [(part.name, part.started_ns - span.started_ns, part.ended_ns - span.started_ns)
            for part in span.children] == [("validation", 0, SECOND_NS), ("queue", SECOND_NS, 5 * SECOND_NS),
                                           ("prefill", 5 * SECOND_NS, 6 * SECOND_NS),
                                           ("decode", 6 * SECOND_NS, 10 * SECOND_NS)]
    assert span.children[1].attributes == {"weft.request_id": "mine", "weft.wait_reason": "blocks"}


def test_preempted_request_has_a_second_queue_span():
    again = ((107.0, RequestPhase.PREEMPTED), (108.0, RequestPhase.PREFILL), (109.0, RequestPhase.DECODE))
    parts = make_span((make_validated_request(), make_record(*PHASE_CHANGES, *again))).children
    assert [part.name for part in parts] == [
        "validation", "queue", "prefill", "decode", "queue", "prefill", "decode"]
    assert parts[4].attributes["weft.wait_reason"] == "yielded"


def test_number_of_child_spans_is_limited():
    pauses = [(102.0 + step / 100, (RequestPhase.DECODE, RequestPhase.SLOW_CLIENT)[step % 2]) for step in range(400)]
    assert len(make_span((make_validated_request(),
                          make_record((101.0, RequestPhase.PREFILL), *pauses))).children) == 1 + MAX_SPANS_PER_SEQUENCE


def test_number_of_traced_sequences_is_limited_but_all_are_counted():
    span = make_span(*[(make_validated_request(), make_record(*PHASE_CHANGES))] * (MAX_TRACED_SEQUENCES + 8),
                     operation=EMBEDDINGS_OPERATION)
    assert len(span.children) == 1 + 3 * MAX_TRACED_SEQUENCES
    assert span.attributes["gen_ai.usage.input_tokens"] == 3 * (MAX_TRACED_SEQUENCES + 8)


def test_request_parameters_are_span_attributes():
    sampling = SamplingParams(temperature=0.5, top_k=9, presence_penalty=0.25)
    attributes = make_span((make_validated_request(11, sampling=sampling, stop_strings=("stop", "end")),
                            make_record(*PHASE_CHANGES))).attributes
    assert {name: value for name, value in attributes.items() if name.startswith("gen_ai.request.")} == {
        "gen_ai.request.model": "demo", "gen_ai.request.max_tokens": 7, "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_k": 9, "gen_ai.request.presence_penalty": 0.25, "gen_ai.request.seed": 11,
        "gen_ai.request.stop_sequences": ("stop", "end")}


def test_seed_beyond_the_otlp_integer_range_is_left_out():
    """Such a number would lose all spans that are exported with it."""
    assert "gen_ai.request.seed" in make_span((make_validated_request(2**63 - 1),
                                               make_record(*PHASE_CHANGES))).attributes
    assert "gen_ai.request.seed" not in make_span((make_validated_request(2**63),
                                                   make_record(*PHASE_CHANGES))).attributes


def test_usage_and_latencies_are_span_attributes():
    attributes = make_span((make_validated_request(), make_record(*PHASE_CHANGES))).attributes
    assert {name: value for name, value in attributes.items() if "usage" in name or "latency" in name} == {
        "gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 5, "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.latency.time_in_queue": 4.0, "gen_ai.latency.time_to_first_token": 6.0,
        "gen_ai.latency.time_in_model_prefill": 1.0, "gen_ai.latency.time_in_model_decode": 4.0,
        "gen_ai.latency.e2e": 100.0}
    assert attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert attributes["gen_ai.response.time_to_first_chunk"] == 6.0


def test_single_token_request_has_its_first_token_at_the_end_of_prefill():
    record = make_record(*PHASE_CHANGES[:3], num_generated=1, finish_reason=FinishReason.LENGTH)
    attributes = make_span((make_validated_request(), record)).attributes
    assert attributes["gen_ai.response.time_to_first_chunk"] == 10.0
    assert attributes["gen_ai.response.finish_reasons"] == ["length"]


def test_request_cancelled_before_its_first_token_has_no_finish_reason():
    attributes = make_span((make_validated_request(),
                            make_record(*PHASE_CHANGES[:2], num_generated=0, finish_reason=None))).attributes
    assert not {"gen_ai.response.time_to_first_chunk", "gen_ai.response.finish_reasons"} & attributes.keys()


def test_several_sequences_share_one_span():
    span = make_span((make_validated_request(), make_record(*PHASE_CHANGES)),
                     (make_validated_request(), make_record(*PHASE_CHANGES, name="mine-2", ended_at=111.0)))
    assert span.attributes["gen_ai.request.choice.count"] == 2
    assert span.attributes["gen_ai.usage.output_tokens"] == 10
    assert span.attributes["gen_ai.response.finish_reasons"] == ["stop", "stop"]
    assert [part.attributes.get("weft.request_id") for part in span.children] == [None] + ["mine"] * 3 + ["mine-2"] * 3
