"""A span for every chunk that a step runs, beneath the span of its request in the router.

Knows nothing of how spans are sent, nor what a step does.
"""

from collections.abc import Callable
from functools import partial
from time import time_ns
from typing import Any

from shard.pb import shard_pb2 as pb
from shard.steplog import RunStep
from shard.traces import Sender


def tracing(sender: Sender | None, rank: int, run_step: RunStep) -> RunStep:
    """How steps are to be run so that they are told of; without a sender as before."""
    return run_step if sender is None else partial(traced, sender, rank, run_step)


def traced(sender: Sender, rank: int, run_step: RunStep, verb: Callable[[Any], Any], request: Any) -> Any:
    """In the compute thread. The router names spans for chunks only, so a step that decodes costs a look."""
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
    """A message that was refused may have columns of different lengths."""
    ended, chunks = time_ns(), request.chunks
    step: dict[str, int] = {"weft.rank": rank, "weft.epoch": request.epoch, "weft.step": request.order,
                            "weft.step.chunks": len(chunks.sequences)}
    for traceparent, start, length in zip(chunks.traceparents, chunks.starts, chunks.lengths, strict=False):
        if traceparent:
            about = step | {"weft.chunk.start": start, "weft.chunk.tokens": length}
            sender.beneath(traceparent, "prefill step", began, ended, about, failed=failed)
