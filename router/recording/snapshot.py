"""Fast snapshot of the whole scheduler: pickled bytes that are kept in memory and never written to a file.

A snapshot holds every field of every reachable object, so that a new field cannot be forgotten. There are two
exceptions: requests are redacted (`redact.py`), and of generated tokens only the number is kept. `scheduler_json.py`
makes JSON of a restored scheduler. Only snapshots of this process are unpickled, never data from a file.
"""

import copyreg
import io
import pickle
from collections.abc import Callable
from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass, fields
from enum import Enum
from itertools import count
from operator import attrgetter
from typing import Any

from router.recording.introspection import SCHEDULER_CLASSES, has_instance_dict, object_fields
from router.recording.redact import PLACEHOLDER_TOKEN, RedactedRequest, rebuild_request, redact_request
from router.request import Request
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import Sequence

SEQUENCE_FIELDS = tuple(item.name for item in fields(Sequence))
get_sequence_values = attrgetter(*SEQUENCE_FIELDS)


class RedactedTokens:
    """Length of a token list, which is unpickled as that many `PLACEHOLDER_TOKEN`."""

    __slots__ = ("length",)

    def __init__(self, length: int) -> None:
        self.length = length

    def __reduce__(self) -> tuple[Callable[[int], list[int]], tuple[int]]:
        return placeholder_tokens, (self.length,)


def placeholder_tokens(length: int) -> list[int]:
    return [PLACEHOLDER_TOKEN] * length


def reduce_sequence(sequence: Sequence) -> tuple[Any, ...]:
    state = dict(zip(SEQUENCE_FIELDS, get_sequence_values(sequence), strict=True))
    state["generated"] = RedactedTokens(len(sequence.generated))
    return copyreg.__newobj__, (Sequence,), (None, state)  # type: ignore[attr-defined]


def reduce_by_fields(instance: object) -> tuple[Any, ...]:
    return copyreg.__newobj__, (type(instance),), object_fields(instance)  # type: ignore[attr-defined]


def reduce_counter(counter: "count[int]") -> tuple[Any, ...]:
    return count, (peek_counter(counter),)


def peek_counter(counter: "count[int]") -> int:
    """Return the next value of a counter without advancing it.

    Python offers no other way that lasts: `next` advances it, and support for copying and pickling it is being removed.
    """
    return int(repr(counter)[len("count("):-1])


DICT_CLASS_REDUCERS = {kind: reduce_by_fields for kind in SCHEDULER_CLASSES.values()
                       if has_instance_dict(kind) and not issubclass(kind, Enum)}


@dataclass(frozen=True, slots=True)
class SchedulerSnapshot:
    """Pickled scheduler and its redacted requests."""

    pickled: bytes
    # `pickled` refers to requests by index; they never change, so they are not pickled
    requests: GenericSequence[RedactedRequest]


class SchedulerPickler(pickle.Pickler):
    """Pickler that redacts requests and tokens."""

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self.requests: list[RedactedRequest] = []
        self.dispatch_table = copyreg.dispatch_table | {
            **DICT_CLASS_REDUCERS, Request: self._reduce_request, Sequence: reduce_sequence, count: reduce_counter}

    def _reduce_request(self, request: Request) -> tuple[Any, ...]:
        self.requests.append(redact_request(request))
        return request_reference, (len(self.requests) - 1,)


class SchedulerUnpickler(pickle.Unpickler):
    """Unpickler that rebuilds redacted requests from a snapshot."""

    def __init__(self, snapshot: SchedulerSnapshot) -> None:
        super().__init__(io.BytesIO(snapshot.pickled))
        self._requests = snapshot.requests

    def find_class(self, module: str, name: str) -> Any:
        if name == request_reference.__name__:
            return lambda place: rebuild_request(*self._requests[place])
        return super().find_class(module, name)


def request_reference(index: int) -> Request:
    """Name a request in pickled data; a `SchedulerUnpickler` looks it up in its snapshot instead of calling this."""
    raise NotImplementedError


def take_snapshot(scheduler: Scheduler) -> SchedulerSnapshot:
    buffer = io.BytesIO()
    pickler = SchedulerPickler(buffer)
    pickler.dump(scheduler)
    return SchedulerSnapshot(buffer.getvalue(), tuple(pickler.requests))


def restore_scheduler(snapshot: SchedulerSnapshot) -> Scheduler:
    """Return an independent scheduler, equal to the one in the snapshot except for redacted requests and tokens."""
    scheduler = SchedulerUnpickler(snapshot).load()
    assert isinstance(scheduler, Scheduler)
    return scheduler
