"""Trace spans that a shard records for its steps."""

from operator import call
from typing import Any

import pytest
from support.servers.span_sender import RecordingSpanSender

from shard.errors import MalformedMessage
from shard.pb import shard_pb2 as pb
from shard.telemetry.step_spans import trace_steps

FIRST_TRACEPARENT, SECOND_TRACEPARENT = f"00-{'1' * 32}-{'1' * 16}-01", f"00-{'2' * 32}-{'2' * 16}-01"


def make_prefill(*traceparents: str) -> pb.PrefillRequest:
    chunks = pb.Chunks(sequences=[5, 6, 7], starts=[0, 16, 32], lengths=[8, 4, 2], traceparents=traceparents)
    return pb.PrefillRequest(epoch=3, order=9, batch=1, chunks=chunks)


def run_traced_step(request: Any, verb: Any = str) -> RecordingSpanSender:
    span_sender = RecordingSpanSender()
    trace_steps(span_sender, 1, call)(verb, request)
    return span_sender


def test_every_chunk_has_a_span_below_its_request() -> None:
    spans = run_traced_step(make_prefill(FIRST_TRACEPARENT, "", SECOND_TRACEPARENT)).spans
    assert [(span.name, span.parent) for span in spans] == [("prefill step", FIRST_TRACEPARENT),
                                                            ("prefill step", SECOND_TRACEPARENT)]
    step = {"weft.rank": 1, "weft.epoch": 3, "weft.step": 9, "weft.step.chunks": 3}
    assert [span.attributes for span in spans] == [
        step | {"weft.chunk.start": 0, "weft.chunk.tokens": 8}, step | {"weft.chunk.start": 32, "weft.chunk.tokens": 2}]
    assert all(0 < span.started_ns <= span.ended_ns for span in spans)
    assert {(span.started_ns, span.ended_ns) for span in spans} == {(spans[0].started_ns, spans[0].ended_ns)}


def test_untraced_steps_have_no_spans() -> None:
    assert run_traced_step(make_prefill()).spans == run_traced_step(pb.DecodeRequest(batch=1)).spans == []


def test_traced_step_returns_the_answer_of_its_verb() -> None:
    assert trace_steps(RecordingSpanSender(), 0, call)(
        lambda request: request.order, make_prefill(FIRST_TRACEPARENT, FIRST_TRACEPARENT, FIRST_TRACEPARENT)) == 9


def test_spans_of_a_failed_step_are_marked_as_failed() -> None:
    """Spans are made from the message as received: columns of a malformed message may have any length."""
    span_sender, request = RecordingSpanSender(), make_prefill(FIRST_TRACEPARENT, SECOND_TRACEPARENT)

    def fail(_: Any) -> None:
        raise MalformedMessage("two columns differ")

    with pytest.raises(MalformedMessage):
        trace_steps(span_sender, 0, call)(fail, request)
    assert [span.has_failed for span in span_sender.spans] == [True, True]


def test_tracing_without_a_sender_changes_nothing() -> None:
    assert trace_steps(None, 0, call) is call
