"""Trace spans of the chunks that a step runs, as children of their request's span in the router."""

from collections.abc import Callable
from functools import partial
from time import time_ns
from typing import Any

from shard.pb import shard_pb2 as pb
from shard.telemetry.step_log import VerbCaller
from shard.telemetry.tracing import SpanSender


def trace_steps(span_sender: SpanSender | None, rank: int, call_verb: VerbCaller) -> VerbCaller:
    """Return a `VerbCaller` that sends spans; without a sender `call_verb` itself."""
    return call_verb if span_sender is None else partial(run_traced, span_sender, rank, call_verb)


def run_traced(span_sender: SpanSender, rank: int, call_verb: VerbCaller, verb: Callable[[Any], Any],
               request: Any) -> Any:
    """Run a step in the compute thread and send its spans. Only chunks have a traceparent, so a decode costs one check.
    """
    if not isinstance(request, pb.PrefillRequest) or not request.chunks.traceparents:
        return call_verb(verb, request)
    started_ns, failed = time_ns(), True
    try:
        answer = call_verb(verb, request)
        failed = False
        return answer
    finally:
        send_chunk_spans(span_sender, rank, request, started_ns, failed=failed)


def send_chunk_spans(span_sender: SpanSender, rank: int, request: pb.PrefillRequest, started_ns: int, *,
                     failed: bool) -> None:
    """Send the spans of a step. The columns of a message that was rejected may have different lengths."""
    ended_ns, chunks = time_ns(), request.chunks
    # `weft.step` is the number of the message that runs the step: Filters and Concats use up numbers, too.
    step_attributes: dict[str, int] = {"weft.rank": rank, "weft.epoch": request.epoch, "weft.step": request.order,
                                       "weft.step.chunks": len(chunks.sequences)}
    for traceparent, start, length in zip(chunks.traceparents, chunks.starts, chunks.lengths, strict=False):
        if traceparent:
            attributes = step_attributes | {"weft.chunk.start": start, "weft.chunk.tokens": length}
            span_sender.add_remote_child(traceparent, "prefill step", started_ns, ended_ns, attributes, failed=failed)
