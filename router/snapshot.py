"""The whole core as it stands, taken fast: bytes that are kept in memory and never written.

They hold every field of every object that can be reached, so that nothing is forgotten when the core gets a new one;
tokens alone are left out, of prompts and of what was generated, whose numbers are kept. `graph.py` makes JSON of a core
that is restored. Only what this process took is restored here, nothing that comes from a file.
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

from router.anatomy import CLASSES, fields_of, has_dict
from router.bare import NOTHING, Bare, bare, request_of
from router.request import Request
from router.scheduler import Scheduler
from router.sequence import Sequence

SEQUENCE = tuple(item.name for item in fields(Sequence))
values_of = attrgetter(*SEQUENCE)


class Tokens:
    """In the place of a list of tokens: how many there are."""

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
    """What it will count next; to look at it any other way would move it on, or is going to be gone from Python."""
    return int(repr(counter)[len("count("):-1])


WITHOUT_SLOTS = {kind: reduce_any for kind in CLASSES.values() if has_dict(kind) and not issubclass(kind, Enum)}


@dataclass(frozen=True, slots=True)
class Snapshot:
    data: bytes
    requests: Rows[Bare]  # not in the data, which refers to them by their place: they never change


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
    """Stands in the data for what an Unpickler puts there."""
    raise NotImplementedError


def take(core: Scheduler) -> Snapshot:
    buffer = io.BytesIO()
    pickler = Pickler(buffer)
    pickler.dump(core)
    return Snapshot(buffer.getvalue(), tuple(pickler.requests))


def restore(snapshot: Snapshot) -> Scheduler:
    """A core of its own, equal to the one that was taken but for the tokens."""
    core = Unpickler(snapshot).load()
    assert isinstance(core, Scheduler)
    return core
