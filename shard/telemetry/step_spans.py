"""Trace spans of the chunks that a step runs, as children of their request's span in the router."""

from collections.abc import Callable
from functools import partial
from time import time_ns
from typing import Any

from shard.pb import shard_pb2 as pb
from shard.telemetry.step_log import RunStep
from shard.telemetry.traces import Sender


def tracing(sender: Sender | None, rank: int, run_step: RunStep) -> RunStep:
    """Return a `RunStep` that sends spans; without a sender `run_step` itself."""
    return run_step if sender is None else partial(traced, sender, rank, run_step)


def traced(sender: Sender, rank: int, run_step: RunStep, verb: Callable[[Any], Any], request: Any) -> Any:
    """Run a step in the compute thread and send its spans. Only chunks have a traceparent, so a decode costs one check.
    """
    if not isinstance(request, pb.PrefillRequest) or not request.chunks.traceparents:
        return run_step(verb, request)
    began, failed = time_ns(), True
    try:
        answer = run_step(verb, request)
        failed = False
        return answer
    finally:
        tell(sender, rank, request, began, failed=failed)


def tell(sender: Sender, rank: int, request: pb.PrefillRequest, began: int, *, failed: bool) -> None:
    """Send the spans of a step. The columns of a message that was rejected may have different lengths."""
    ended, chunks = time_ns(), request.chunks
    step: dict[str, int] = {"weft.rank": rank, "weft.epoch": request.epoch, "weft.step": request.order,
                            "weft.step.chunks": len(chunks.sequences)}
    for traceparent, start, length in zip(chunks.traceparents, chunks.starts, chunks.lengths, strict=False):
        if traceparent:
            about = step | {"weft.chunk.start": start, "weft.chunk.tokens": length}
            sender.beneath(traceparent, "prefill step", began, ended, about, failed=failed)
