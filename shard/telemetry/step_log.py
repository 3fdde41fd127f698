"""Log of when each step began and ended, to measure how busy a shard is."""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from struct import pack
from time import monotonic
from typing import Any, BinaryIO, TypeVar

from shard.pending_result import PendingResult

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
