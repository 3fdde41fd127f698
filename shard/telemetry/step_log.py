"""Log of when each step began and ended, to measure how busy a shard is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from struct import pack
from time import monotonic
from typing import Any, BinaryIO, TypeVar

from shard.deferred import Later

Answer = TypeVar("Answer")
RunStep = Callable[[Callable[[Any], Any], Any], Any]  # calls a verb with a request


def untimed(verb: Callable[[Any], Answer], request: Any) -> Answer:
    return verb(request)


def timed(file: BinaryIO, verb: Callable[[Any], Answer], request: Any) -> Answer:
    """Run a step and add its begin and end to the file: two doubles, seconds of the system's monotonic clock."""
    begin, answer = monotonic(), None

    def ended(_: object = None) -> None:
        file.write(pack("dd", begin, monotonic()))

    try:
        answer = verb(request)
        return answer
    finally:
        if isinstance(answer, Later):
            answer.answer.add_done_callback(ended)
        else:
            ended()


@contextmanager
def timing(path: str) -> Iterator[RunStep]:
    """Yield a `RunStep` that writes the steps' times to the file; without a path nothing is timed."""
    if not path:
        yield untimed
        return
    with open(path, "wb", buffering=0) as file:
        yield partial(timed, file)
