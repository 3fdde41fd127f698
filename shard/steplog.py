"""When each step began and ended, for whoever measures how busy a shard is. Knows nothing of what a step does."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from struct import pack
from time import monotonic
from typing import Any, BinaryIO, TypeVar

from shard.later import Later

Answer = TypeVar("Answer")
RunStep = Callable[[Callable[[Any], Any], Any], Any]  # calls a verb with a request


def untimed(verb: Callable[[Any], Answer], request: Any) -> Answer:
    return verb(request)


def timed(file: BinaryIO, verb: Callable[[Any], Answer], request: Any) -> Answer:
    """Adds begin and end to the file: two doubles, seconds of the system's monotonic clock."""
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
    """How steps are to be run so that their times are found in the file; without a path nothing is timed."""
    if not path:
        yield untimed
        return
    with open(path, "wb", buffering=0) as file:
        yield partial(timed, file)
