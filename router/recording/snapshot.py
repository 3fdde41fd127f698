"""Fast snapshot of the whole scheduler: pickled bytes that are kept in memory and never written to a file.

A snapshot holds every field of every reachable object, so that a new field cannot be forgotten. There are two
exceptions: requests are redacted (`redact.py`), and of generated tokens only the number is kept. `core_json.py` makes
JSON of a restored scheduler. Only snapshots of this process are unpickled, never data from a file.
"""

import copyreg
import io
import pickle
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, fields
from enum import Enum
from itertools import count
from operator import attrgetter
from typing import Any

from router.recording.anatomy import CLASSES, fields_of, has_dict
from router.recording.redact import NOTHING, Bare, bare, request_of
from router.request import Request
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import Sequence

SEQUENCE = tuple(item.name for item in fields(Sequence))
values_of = attrgetter(*SEQUENCE)


class Tokens:
    """Length of a token list, which is unpickled as that many `NOTHING`."""

    __slots__ = ("length",)

    def __init__(self, length: int) -> None:
        self.length = length

    def __reduce__(self) -> tuple[Callable[[int], list[int]], tuple[int]]:
        return nothings, (self.length,)


def nothings(length: int) -> list[int]:
    return [NOTHING] * length


def reduce_sequence(sequence: Sequence) -> tuple[Any, ...]:
    state = dict(zip(SEQUENCE, values_of(sequence), strict=True))
    state["generated"] = Tokens(len(sequence.generated))
    return copyreg.__newobj__, (Sequence,), (None, state)  # type: ignore[attr-defined]


def reduce_any(thing: object) -> tuple[Any, ...]:
    return copyreg.__newobj__, (type(thing),), fields_of(thing)  # type: ignore[attr-defined]


def reduce_count(counter: "count[int]") -> tuple[Any, ...]:
    return count, (next_of(counter),)


def next_of(counter: "count[int]") -> int:
    """Return the next value of a counter without advancing it.

    Python offers no other way that lasts: `next` advances it, and support for copying and pickling it is being removed.
    """
    return int(repr(counter)[len("count("):-1])


WITHOUT_SLOTS = {kind: reduce_any for kind in CLASSES.values() if has_dict(kind) and not issubclass(kind, Enum)}


@dataclass(frozen=True, slots=True)
class Snapshot:
    data: bytes
    requests: Rows[Bare]  # `data` refers to requests by index; they never change, so they are not pickled


class Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self.requests: list[Bare] = []
        self.dispatch_table = copyreg.dispatch_table | {
            **WITHOUT_SLOTS, Request: self._request, Sequence: reduce_sequence, count: reduce_count}

    def _request(self, request: Request) -> tuple[Any, ...]:
        self.requests.append(bare(request))
        return request_at, (len(self.requests) - 1,)


class Unpickler(pickle.Unpickler):
    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(io.BytesIO(snapshot.data))
        self._requests = snapshot.requests

    def find_class(self, module: str, name: str) -> Any:
        if name == request_at.__name__:
            return lambda place: request_of(*self._requests[place])
        return super().find_class(module, name)


def request_at(place: int) -> Request:
    """Name a request in pickled data; an `Unpickler` looks it up in its snapshot instead of calling this."""
    raise NotImplementedError


def take(core: Scheduler) -> Snapshot:
    buffer = io.BytesIO()
    pickler = Pickler(buffer)
    pickler.dump(core)
    return Snapshot(buffer.getvalue(), tuple(pickler.requests))


def restore(snapshot: Snapshot) -> Scheduler:
    """Return an independent scheduler, equal to the one in the snapshot except for redacted requests and tokens."""
    core = Unpickler(snapshot).load()
    assert isinstance(core, Scheduler)
    return core
