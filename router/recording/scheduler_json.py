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

from router.recording.introspection import SCHEDULER_CLASSES, is_value_type, object_fields
from router.recording.redact import redact_request, redacted_request_to_json, request_from_json
from router.recording.snapshot import peek_counter, placeholder_tokens
from router.request import Request
from router.scheduler.running_sequences import BlockHasher
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import Sequence

CONTAINER_TYPES: dict[str, Callable[..., Any]] = {
    "list": list, "set": set, "deque": deque, "dict": dict, "OrderedDict": OrderedDict}


class ObjectTableWriter:
    """Writer of the table. Equal schedulers give equal tables."""

    def __init__(self) -> None:
        self.table: list[Any] = []
        self._indices: dict[int, int] = {}

    def encode_value(self, value: Any) -> Any:
        value_type = type(value)
        if value is None or value_type in (bool, int, str) or (value_type is float and isfinite(value)):
            return value
        return self._encode_tagged(value, value_type)

    def _encode_tagged(self, value: Any, value_type: type) -> dict[str, Any]:
        if value_type is tuple:
            return {"tuple": [self.encode_value(item) for item in value]}
        if isinstance(value, Enum):
            return {"enum": f"{value_type.__name__}.{value.name}"}
        if value_type in SCALAR_ENCODERS:
            name, make = SCALAR_ENCODERS[value_type]
            return {name: make(value)}
        if callable(value):
            return {"seam": "hasher"}  # the only callable in a scheduler
        # Values are written inline, not by index: the index of a set's element would depend on the order of the set.
        return ({value_type.__name__: self._encode_fields(value)} if is_value_type(value_type)
                else {"at": self._object_index(value)})

    def _object_index(self, instance: Any) -> int:
        index = self._indices.get(id(instance))
        if index is None:
            index = self._indices[id(instance)] = len(self.table)
            self.table.append(None)
            self.table[index] = self._encode_object(instance)
        return index

    def _encode_object(self, instance: Any) -> list[Any]:
        object_type = type(instance)
        name = object_type.__name__
        if object_type in (dict, OrderedDict):
            return [name, [[self.encode_value(key), self.encode_value(value)] for key, value in instance.items()]]
        if object_type in (set, frozenset):
            return [name, sorted((self.encode_value(item) for item in instance), key=repr)]
        if object_type in (list, deque):
            return [name, [self.encode_value(item) for item in instance]]
        return [name, self._encode_fields(instance)]

    def _encode_fields(self, instance: Any) -> dict[str, Any]:
        object_type = type(instance)
        if SCHEDULER_CLASSES.get(object_type.__name__) is not object_type:
            raise TypeError(
                f"the core holds a {object_type.__module__}.{object_type.__qualname__}, which cannot be told as JSON")
        fields = object_fields(instance)
        if object_type is Sequence:
            return {name: self.encode_value(value) for name, value in fields.items() if name != "generated"} | {
                "generated": {"nothings": len(instance.generated)}}
        return {name: self.encode_value(value) for name, value in fields.items()}


SCALAR_ENCODERS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    float: ("float", repr),  # infinite, or not a number
    bytes: ("bytes", bytes.hex),
    count: ("count", peek_counter),
    Request: ("request", lambda request: redacted_request_to_json(redact_request(request)))}


class ObjectTableReader:
    """Reader of a table, which creates each object when it is first referred to."""

    def __init__(self, table: list[Any], hasher: BlockHasher) -> None:
        self._table = table
        self._objects: dict[int, Any] = {}
        self._scalar_decoders: dict[str, Callable[[Any], Any]] = {
            "tuple": lambda items: tuple(map(self.decode_value, items)),
            "enum": decode_enum_member,
            "float": float, "bytes": bytes.fromhex, "count": count, "request": request_from_json,
            "nothings": placeholder_tokens, "seam": lambda _: hasher,
            "at": self.get_object}

    def decode_value(self, encoded: Any) -> Any:
        if type(encoded) is not dict:
            return encoded
        (name, content), = encoded.items()
        return (self._scalar_decoders[name](content) if name in self._scalar_decoders
                else self._create_inline(SCHEDULER_CLASSES[name], content))

    def get_object(self, index: int) -> Any:
        if index not in self._objects:
            self._create_object(index)
        return self._objects[index]

    def _create_object(self, index: int) -> None:
        """Create the object at this index. All that may be part of a cycle is registered before it is filled."""
        name, content = self._table[index]
        if name == "frozenset":
            self._objects[index] = frozenset(map(self.decode_value, content))
        elif name in CONTAINER_TYPES:
            self._objects[index] = CONTAINER_TYPES[name]()
            self._fill_container(self._objects[index], content)
        else:
            self._objects[index] = object.__new__(SCHEDULER_CLASSES[name])
            self._set_fields(self._objects[index], content)

    def _create_inline(self, object_type: type, content: dict[str, Any]) -> Any:
        instance: Any = object.__new__(object_type)
        self._set_fields(instance, content)
        return instance

    def _set_fields(self, instance: Any, content: dict[str, Any]) -> None:
        for field, value in content.items():
            object.__setattr__(instance, field, self.decode_value(value))

    def _fill_container(self, container: Any, content: list[Any]) -> None:
        if isinstance(container, dict):
            container.update((self.decode_value(key), self.decode_value(value)) for key, value in content)
        elif isinstance(container, set):
            container.update(map(self.decode_value, content))
        else:
            container.extend(map(self.decode_value, content))


def decode_enum_member(qualified_name: str) -> Enum:
    kind, _, member = qualified_name.partition(".")
    if not issubclass(SCHEDULER_CLASSES[kind], Enum):
        raise TypeError(f"{kind} is no enumeration")
    found: Enum = SCHEDULER_CLASSES[kind][member]  # type: ignore[index]
    return found


def scheduler_to_json(scheduler: Scheduler) -> list[Any]:
    """Return the table of objects. The scheduler itself is the first."""
    writer = ObjectTableWriter()
    writer.encode_value(scheduler)
    return writer.table


def scheduler_from_json(table: list[Any], hasher: BlockHasher) -> Scheduler:
    """Rebuild a scheduler from a table.

    A table that does not fit this version raises KeyError, IndexError, TypeError, ValueError or AttributeError.
    """
    scheduler = ObjectTableReader(table, hasher).get_object(0)
    if not isinstance(scheduler, Scheduler):
        raise TypeError("the first object is no scheduler")
    return scheduler


def table_differences(recorded: list[Any], replayed: list[Any]) -> Iterator[str]:
    """Yield a description of each difference between two tables, in the order of the objects."""
    for index, (before, after) in enumerate(zip(recorded, replayed, strict=False)):
        if before != after:
            yield f"object {index}, {_describe_difference(before, after)}"
    if len(recorded) != len(replayed):
        yield f"{len(recorded)} objects were recorded, there are {len(replayed)}"


def _describe_difference(before: list[Any], after: list[Any]) -> str:
    if before[0] == after[0] and isinstance(before[1], dict):
        names = [name for name in {**before[1], **after[1]} if before[1].get(name) != after[1].get(name)]
        return f"a {before[0]}: " + ", ".join(
            f"{name} was {before[1].get(name)!r} and is {after[1].get(name)!r}" for name in names)
    return f"a {before[0]}: was {str(before[1])[:80]} and is a {after[0]}: {str(after[1])[:80]}"
