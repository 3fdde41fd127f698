"""Trace spans of the chunks that a step runs, as children of their request's span in the router."""

from collections.abc import Callable
from functools import partial
from time import time_ns
from typing import Any

from shard.pb import shard_pb2 as pb
from shard.telemetry.step_log import VerbCaller
from shard.telemetry.tracing import SpanSender


def trace_steps(span_sender: SpanSender | None, rank: int, run_step: VerbCaller) -> VerbCaller:
    """Return a `VerbCaller` that sends spans; without a sender `run_step` itself."""
    return run_step if span_sender is None else partial(run_traced, span_sender, rank, run_step)


def run_traced(span_sender: SpanSender, rank: int, run_step: VerbCaller, verb: Callable[[Any], Any],
               request: Any) -> Any:
    """Run a step in the compute thread and send its spans. Only chunks have a traceparent, so a decode costs one check.
    """
    if not isinstance(request, pb.PrefillRequest) or not request.chunks.traceparents:
        return run_step(verb, request)
    started_ns, failed = time_ns(), True
    try:
        answer = run_step(verb, request)
        failed = False
        return answer
    finally:
        send_chunk_spans(span_sender, rank, request, started_ns, failed=failed)


def send_chunk_spans(span_sender: SpanSender, rank: int, request: pb.PrefillRequest, started_ns: int, *,
                     failed: bool) -> None:
    """Send the spans of a step. The columns of a message that was rejected may have different lengths."""
    ended_ns, chunks = time_ns(), request.chunks
    step_attributes: dict[str, int] = {"weft.rank": rank, "weft.epoch": request.epoch, "weft.step": request.order,
                                       "weft.step.chunks": len(chunks.sequences)}
    for traceparent, start, length in zip(chunks.traceparents, chunks.starts, chunks.lengths, strict=False):
        if traceparent:
            attributes = step_attributes | {"weft.chunk.start": start, "weft.chunk.tokens": length}
            span_sender.add_remote_child(traceparent, "prefill step", started_ns, ended_ns, attributes, failed=failed)
