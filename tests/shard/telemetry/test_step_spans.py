"""Trace spans that a shard records for its steps."""

from typing import Any

import pytest
from support.span_sender import Notes

from shard.errors import Malformed
from shard.pb import shard_pb2 as pb
from shard.telemetry.step_log import untimed
from shard.telemetry.step_spans import tracing

ONE, TWO = f"00-{'1' * 32}-{'1' * 16}-01", f"00-{'2' * 32}-{'2' * 16}-01"


def prefill(*traceparents: str) -> pb.PrefillRequest:
    chunks = pb.Chunks(sequences=[5, 6, 7], starts=[0, 16, 32], lengths=[8, 4, 2], traceparents=traceparents)
    return pb.PrefillRequest(epoch=3, order=9, batch=1, chunks=chunks)


def run(request: Any, verb: Any = str) -> Notes:
    notes = Notes()
    tracing(notes, 1, untimed)(verb, request)
    return notes


def test_every_chunk_is_told_beneath_the_request_that_it_belongs_to() -> None:
    spans = run(prefill(ONE, "", TWO)).spans
    assert [(span.name, span.parent) for span in spans] == [("prefill step", ONE), ("prefill step", TWO)]
    step = {"weft.rank": 1, "weft.epoch": 3, "weft.step": 9, "weft.step.chunks": 3}
    assert [span.attributes for span in spans] == [
        step | {"weft.chunk.start": 0, "weft.chunk.tokens": 8}, step | {"weft.chunk.start": 32, "weft.chunk.tokens": 2}]
    assert all(0 < span.began <= span.ended for span in spans)
    assert {(span.began, span.ended) for span in spans} == {(spans[0].began, spans[0].ended)}


def test_steps_that_nobody_traces_are_not_told() -> None:
    assert run(prefill()).spans == run(pb.DecodeRequest(batch=1)).spans == []


def test_the_answer_is_what_the_verb_says() -> None:
    assert tracing(Notes(), 0, untimed)(lambda request: request.order, prefill(ONE, ONE, ONE)) == 9


def test_a_step_that_fails_is_told_as_one() -> None:
    """Spans are made from the message as received: columns of a malformed message may have any length."""
    notes, request = Notes(), prefill(ONE, TWO)

    def fail(_: Any) -> None:
        raise Malformed("two columns differ")

    with pytest.raises(Malformed):
        tracing(notes, 0, untimed)(fail, request)
    assert [span.failed for span in notes.spans] == [True, True]


def test_without_a_sender_steps_run_as_before() -> None:
    assert tracing(None, 0, untimed) is untimed
