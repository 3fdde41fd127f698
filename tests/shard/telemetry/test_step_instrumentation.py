"""Log and trace spans that a shard records for its steps."""

from array import array
from operator import call
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from support.servers.span_sender import RecordingSpanSender

from shard.errors import MalformedMessage
from shard.pb import shard_pb2 as pb
from shard.pending_result import PendingResult
from shard.telemetry.step_instrumentation import make_traced_caller, open_step_log

FIRST_TRACEPARENT, SECOND_TRACEPARENT = f"00-{'1' * 32}-{'1' * 16}-01", f"00-{'2' * 32}-{'2' * 16}-01"


def read_times(path: Path) -> "array[float]":
    return array("d", path.read_bytes())


def test_start_and_end_of_every_step_are_logged(tmp_path: Path) -> None:
    begin = monotonic()
    with open_step_log(str(tmp_path / "log")) as call_verb:
        assert [call_verb(str, number) for number in (1, 2)] == ["1", "2"]
        times = read_times(tmp_path / "log")
    assert len(times) == 4
    assert sorted([begin, *times]) == [begin, *times]


def test_failed_step_is_logged_too(tmp_path: Path) -> None:
    def fail(request: Any) -> None:
        raise ValueError(request)

    with open_step_log(str(tmp_path / "log")) as call_verb, pytest.raises(ValueError, match="1"):
        call_verb(fail, 1)
    assert len(read_times(tmp_path / "log")) == 2


def test_deferred_step_ends_when_it_is_finished(tmp_path: Path) -> None:
    with open_step_log(str(tmp_path / "log")) as call_verb:
        pending_result = call_verb(lambda request: PendingResult(lambda: None, lambda: request), 7)
        assert not read_times(tmp_path / "log")
        finish_called_at = monotonic()
        assert pending_result.finish() == 7
        begin, end = read_times(tmp_path / "log")
    assert begin <= finish_called_at <= end


def test_nothing_is_logged_without_a_path() -> None:
    with open_step_log("") as call_verb:
        assert call_verb(str, 1) == "1"


# -- spans


def make_prefill(*traceparents: str) -> pb.PrefillRequest:
    chunks = pb.Chunks(sequences=[5, 6, 7], starts=[0, 16, 32], lengths=[8, 4, 2], traceparents=traceparents)
    return pb.PrefillRequest(epoch=3, order=9, batch=1, chunks=chunks)


def run_traced_step(request: Any, verb: Any = str) -> RecordingSpanSender:
    span_sender = RecordingSpanSender()
    make_traced_caller(span_sender, 1, call)(verb, request)
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
    assert make_traced_caller(RecordingSpanSender(), 0, call)(
        lambda request: request.order, make_prefill(FIRST_TRACEPARENT, FIRST_TRACEPARENT, FIRST_TRACEPARENT)) == 9


def test_spans_of_a_failed_step_are_marked_as_failed() -> None:
    """Spans are made from the message as received: columns of a malformed message may have any length."""
    span_sender, request = RecordingSpanSender(), make_prefill(FIRST_TRACEPARENT, SECOND_TRACEPARENT)

    def fail(_: Any) -> None:
        raise MalformedMessage("two columns differ")

    with pytest.raises(MalformedMessage):
        make_traced_caller(span_sender, 0, call)(fail, request)
    assert [span.has_failed for span in span_sender.spans] == [True, True]


def test_tracing_without_a_sender_changes_nothing() -> None:
    assert make_traced_caller(None, 0, call) is call
