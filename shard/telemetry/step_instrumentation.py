"""Log of when each step began and ended, to measure how busy a shard is, and trace spans of the chunks that it runs."""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from struct import pack
from time import monotonic, time_ns
from typing import Any, BinaryIO, TypeVar

from shard.pb import shard_pb2 as pb
from shard.pending_result import PendingResult
from shard.telemetry.span_export_interface import SpanSender

Answer = TypeVar("Answer")
VerbCaller = Callable[[Callable[[Any], Any], Any], Any]  # calls a verb with a request; `operator.call` does no more


def run_timed(file: BinaryIO, verb: Callable[[Any], Answer], request: Any) -> Answer:
    """Run a step and add its begin and end to the file: two doubles, seconds of the system's monotonic clock."""
    started_at, answer = monotonic(), None

    def write_times(_: object = None) -> None:
        file.write(pack("dd", started_at, monotonic()))

    try:
        answer = verb(request)
        return answer
    finally:
        if isinstance(answer, PendingResult):
            answer.future.add_done_callback(write_times)
        else:
            write_times()


@contextmanager
def open_step_log(path: str) -> Iterator[VerbCaller]:
    """Yield a `VerbCaller` that writes the steps' times to the file; without a path nothing is timed."""
    if not path:
        yield operator.call
        return
    with open(path, "wb", buffering=0) as file:
        yield partial(run_timed, file)


def make_traced_caller(span_sender: SpanSender | None, rank: int, call_verb: VerbCaller) -> VerbCaller:
    """Return a `VerbCaller` that sends spans; without a sender `call_verb` itself."""
    return call_verb if span_sender is None else partial(run_traced, span_sender, rank, call_verb)


def run_traced(span_sender: SpanSender, rank: int, call_verb: VerbCaller, verb: Callable[[Any], Any],
               request: Any) -> Any:
    """Run a step in the compute thread and send a span of each chunk, a child of its request's span in the router.

    Only chunks have a traceparent, so a decode costs one check. The columns of a message that was rejected may have
    different lengths.
    """
    if not isinstance(request, pb.PrefillRequest) or not request.chunks.traceparents:
        return call_verb(verb, request)
    started_ns, failed = time_ns(), True
    try:
        answer = call_verb(verb, request)
        failed = False
        return answer
    finally:
        ended_ns, chunks = time_ns(), request.chunks
        # `weft.step` is the number of the message that runs the step: Filters and Concats use up numbers, too.
        step_attributes = {"weft.rank": rank, "weft.epoch": request.epoch, "weft.step": request.order,
                           "weft.step.chunks": len(chunks.sequences)}
        for traceparent, start, length in zip(chunks.traceparents, chunks.starts, chunks.lengths, strict=False):
            if traceparent:
                attributes = step_attributes | {"weft.chunk.start": start, "weft.chunk.tokens": length}
                span_sender.add_remote_child(traceparent, "prefill step", started_ns, ended_ns, attributes,
                                             failed=failed)
