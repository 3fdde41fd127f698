"""Scheduler as JSON and back: a table of all objects that it consists of, which refer to each other by index.

Reading creates built-in values and objects of the scheduler's own classes only, and sets their fields without calling
their code. Two classes are special: a `Request` is written redacted and rebuilt by its constructor (`redact.py`), and
of a `Sequence` the number of generated tokens is written instead of the tokens.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import count
from math import isfinite
from typing import Any

from router.recording.anatomy import CLASSES, fields_of, is_value
from router.recording.redact import bare, heard, told
from router.recording.snapshot import next_of, nothings
from router.request import Request
from router.scheduler.running import Hasher
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import Sequence

SEQUENCES: dict[str, Callable[..., Any]] = {
    "list": list, "set": set, "deque": deque, "dict": dict, "OrderedDict": OrderedDict}


class Writer:
    """Writer of the table. Equal schedulers give equal tables."""

    def __init__(self) -> None:
        self.table: list[Any] = []
        self._places: dict[int, int] = {}

    def value(self, thing: Any) -> Any:
        kind = type(thing)
        if thing is None or kind in (bool, int, str) or (kind is float and isfinite(thing)):
            return thing
        return self._named(thing, kind)

    def _named(self, thing: Any, kind: type) -> dict[str, Any]:
        if kind is tuple:
            return {"tuple": [self.value(item) for item in thing]}
        if isinstance(thing, Enum):
            return {"enum": f"{kind.__name__}.{thing.name}"}
        if kind in SIMPLE:
            name, make = SIMPLE[kind]
            return {name: make(thing)}
        if callable(thing):
            return {"seam": "hasher"}  # the only callable in a scheduler
        # Values are written inline, not by index: the index of a set's element would depend on the order of the set.
        return {kind.__name__: self._fields(thing)} if is_value(kind) else {"at": self._place(thing)}

    def _place(self, thing: Any) -> int:
        place = self._places.get(id(thing))
        if place is None:
            place = self._places[id(thing)] = len(self.table)
            self.table.append(None)
            self.table[place] = self._row(thing)
        return place

    def _row(self, thing: Any) -> list[Any]:
        kind = type(thing)
        name = kind.__name__
        if kind in (dict, OrderedDict):
            return [name, [[self.value(key), self.value(value)] for key, value in thing.items()]]
        if kind in (set, frozenset):
            return [name, sorted((self.value(item) for item in thing), key=repr)]
        if kind in (list, deque):
            return [name, [self.value(item) for item in thing]]
        return [name, self._fields(thing)]

    def _fields(self, thing: Any) -> dict[str, Any]:
        kind = type(thing)
        if CLASSES.get(kind.__name__) is not kind:
            raise TypeError(f"the core holds a {kind.__module__}.{kind.__qualname__}, which cannot be told as JSON")
        fields = fields_of(thing)
        if kind is Sequence:
            return {name: self.value(value) for name, value in fields.items() if name != "generated"} | {
                "generated": {"nothings": len(thing.generated)}}
        return {name: self.value(value) for name, value in fields.items()}


SIMPLE: dict[type, tuple[str, Callable[[Any], Any]]] = {
    float: ("float", repr),  # infinite, or not a number
    bytes: ("bytes", bytes.hex),
    count: ("count", next_of),
    Request: ("request", lambda request: told(bare(request)))}


class Reader:
    """Reader of a table, which creates each object when it is first referred to."""

    def __init__(self, table: list[Any], hasher: Hasher) -> None:
        self._table = table
        self._made: dict[int, Any] = {}
        self._simple: dict[str, Callable[[Any], Any]] = {
            "tuple": lambda items: tuple(map(self.value, items)),
            "enum": enum_member,
            "float": float, "bytes": bytes.fromhex, "count": count, "request": heard,
            "nothings": nothings, "seam": lambda _: hasher,
            "at": self.thing}

    def value(self, told: Any) -> Any:
        if type(told) is not dict:
            return told
        (name, content), = told.items()
        return self._simple[name](content) if name in self._simple else self._filled(CLASSES[name], content)

    def thing(self, place: int) -> Any:
        if place not in self._made:
            self._make(place)
        return self._made[place]

    def _make(self, place: int) -> None:
        """Create the object at this index. All that may be part of a cycle is registered before it is filled."""
        name, content = self._table[place]
        if name == "frozenset":
            self._made[place] = frozenset(map(self.value, content))
        elif name in SEQUENCES:
            self._made[place] = SEQUENCES[name]()
            self._fill(self._made[place], content)
        else:
            self._made[place] = object.__new__(CLASSES[name])
            self._set_fields(self._made[place], content)

    def _filled(self, kind: type, content: dict[str, Any]) -> Any:
        made: Any = object.__new__(kind)
        self._set_fields(made, content)
        return made

    def _set_fields(self, made: Any, content: dict[str, Any]) -> None:
        for field, value in content.items():
            object.__setattr__(made, field, self.value(value))

    def _fill(self, made: Any, content: list[Any]) -> None:
        if isinstance(made, dict):
            made.update((self.value(key), self.value(value)) for key, value in content)
        elif isinstance(made, set):
            made.update(map(self.value, content))
        else:
            made.extend(map(self.value, content))


def enum_member(name: str) -> Enum:
    kind, _, member = name.partition(".")
    if not issubclass(CLASSES[kind], Enum):
        raise TypeError(f"{kind} is no enumeration")
    found: Enum = CLASSES[kind][member]  # type: ignore[index]
    return found


def to_json(core: Scheduler) -> list[Any]:
    """Return the table of objects. The scheduler itself is the first."""
    writer = Writer()
    writer.value(core)
    return writer.table


def from_json(table: list[Any], hasher: Hasher) -> Scheduler:
    """Rebuild a scheduler from a table.

    A table that does not fit this version raises KeyError, IndexError, TypeError, ValueError or AttributeError.
    """
    core = Reader(table, hasher).thing(0)
    if not isinstance(core, Scheduler):
        raise TypeError("the first object is no scheduler")
    return core


def differences(recorded: list[Any], now: list[Any]) -> Iterator[str]:
    """Yield a description of each difference between two tables, in the order of the objects."""
    for place, (before, after) in enumerate(zip(recorded, now, strict=False)):
        if before != after:
            yield f"object {place}, {_difference(before, after)}"
    if len(recorded) != len(now):
        yield f"{len(recorded)} objects were recorded, there are {len(now)}"


def _difference(before: list[Any], after: list[Any]) -> str:
    if before[0] == after[0] and isinstance(before[1], dict):
        names = [name for name in {**before[1], **after[1]} if before[1].get(name) != after[1].get(name)]
        return f"a {before[0]}: " + ", ".join(
            f"{name} was {before[1].get(name)!r} and is {after[1].get(name)!r}" for name in names)
    return f"a {before[0]}: was {str(before[1])[:80]} and is a {after[0]}: {str(after[1])[:80]}"
