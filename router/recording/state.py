"""The scheduler's state as a table of all objects that it consists of, which refer to each other by index.

A table is a snapshot: it shares nothing that changes with the scheduler. It is kept in memory as it is, and becomes
JSON by `table_to_json`. Every class of the scheduler that may occur is listed in STATE_CLASSES and names its fields in
`__slots__`. Restoring creates built-in values and objects of these classes only, and sets their fields without calling
their code.

Two classes are special: a `Request` is redacted (`redact.py`), and of a `Sequence` the number of generated tokens is
kept instead of the tokens. What can be found again (DERIVED_FIELDS) is left out.
"""

import json
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from typing import Any

from router.model_info import ModelInfo, StepMeasurement
from router.recording.redact import (
    PLACEHOLDER_TOKEN,
    RedactedRequest,
    rebuild_request,
    redact_request,
    redacted_request_to_json,
    request_from_json,
)
from router.request import LoadableResource, Request, RequestKind, Tenant, hash_blocks
from router.scheduler.admission import AdmissionControl, WaitForecast
from router.scheduler.baseline_policies import RecomputePolicy, StaticPolicy
from router.scheduler.block_pool import BlockPool
from router.scheduler.cost_model import CostModel, PredictionRatios, StepLoad
from router.scheduler.fault_isolation import FaultIsolation
from router.scheduler.loadable_resource_cache import CachedResource, LoadableResourceCache, ResourceState
from router.scheduler.messages import LoadResource, UnloadResource
from router.scheduler.policies import MixedPolicy, PausePolicy, PrefillTimeAllowance
from router.scheduler.pooling import PoolingPolicy
from router.scheduler.running_sequences import Batch, BlockHasher, RunningSequences
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import RequestPhase, RequestTimeline, Sequence, SequenceState
from router.scheduler.sequence_table import DeadlineHeap, SequenceTable
from router.scheduler.settings import SchedulerSettings
from router.scheduler.step import ChunkWrite, ResultProcessor, StepInFlight
from router.scheduler.waiting_queue import FairShares, QueueDemand, TenantQueue, WaitingQueue
from router.scheduler.waiting_sequence_selector import WaitingSequenceSelector

STATE_CLASSES: dict[str, type] = {state_class.__name__: state_class for state_class in (
    AdmissionControl, Batch, BlockPool, CachedResource, ChunkWrite, CostModel, DeadlineHeap, FairShares, FaultIsolation,
    LoadResource, LoadableResource, LoadableResourceCache, MixedPolicy, ModelInfo, PausePolicy, PoolingPolicy,
    PredictionRatios, PrefillTimeAllowance, QueueDemand, RecomputePolicy, RequestTimeline, ResultProcessor,
    RunningSequences, Scheduler, SchedulerSettings, Sequence, SequenceTable, StaticPolicy, StepInFlight, StepLoad,
    StepMeasurement, Tenant, TenantQueue, UnloadResource, WaitForecast, WaitingQueue, WaitingSequenceSelector)}
STATE_ENUMS: dict[str, type[Enum]] = {enum.__name__: enum for enum in (
    RequestKind, RequestPhase, ResourceState, SequenceState)}
# Values that are equal to others, not identical with them; they are written where they stand, not by index.
VALUE_CLASSES = {LoadResource, LoadableResource, ModelInfo, SchedulerSettings, StepLoad, StepMeasurement, Tenant,
                 UnloadResource}
DERIVED_FIELDS: dict[type, dict[str, Callable[[], Any]]] = {
    Sequence: {"cached_prefix": list, "cached_prefix_version": lambda: None},
    RunningSequences: {"_hasher": lambda: None}}  # set by the reader
ATOMS = frozenset({type(None), bool, int, float, str, bytes})
CONTAINERS: dict[str, Callable[..., Any]] = {
    "list": list, "set": set, "deque": deque, "dict": dict, "OrderedDict": OrderedDict}

StateTable = list[Any]


@cache
def field_names(state_class: type) -> tuple[str, ...]:
    derived = DERIVED_FIELDS.get(state_class, {})
    return tuple(name for base in reversed(state_class.__mro__) for name in vars(base).get("__slots__", ())
                 if name != "__weakref__" and name not in derived)


class TableWriter:
    """Writer of the table. Equal schedulers give equal tables."""

    def __init__(self) -> None:
        self.table: StateTable = []
        self._indices: dict[int, int] = {}

    def encode(self, value: Any) -> Any:
        value_type = type(value)
        if value_type in ATOMS:
            return value
        if value_type is tuple:
            return {"tuple": self._encode_all(value)}
        if isinstance(value, Enum):
            return {"enum": f"{value_type.__name__}.{value.name}"}
        if value_type is Request:
            return redact_request(value)
        if value_type in VALUE_CLASSES:
            return {value_type.__name__: self._encode_fields(value, value_type)}
        index = self._indices.get(id(value))
        if index is None:
            index = self._indices[id(value)] = len(self.table)
            self.table.append(None)
            self.table[index] = self._encode_object(value, value_type)
        return {"at": index}

    def _encode_object(self, value: Any, value_type: type) -> list[Any]:
        if value_type in (list, deque):
            return [value_type.__name__, self._encode_all(value)]
        if value_type in (dict, OrderedDict):
            return [value_type.__name__, [self._encode_all(value), self._encode_all(value.values())]]
        if value_type in (set, frozenset):
            return [value_type.__name__, sorted(self._encode_all(value), key=repr)]
        state_class = Scheduler if isinstance(value, Scheduler) else value_type
        return [state_class.__name__, self._encode_fields(value, state_class)]

    def _encode_all(self, values: Any) -> list[Any]:
        if ATOMS.issuperset(map(type, values)):
            return [*values]
        encode = self.encode
        return [value if type(value) in ATOMS else encode(value) for value in values]

    def _encode_fields(self, instance: Any, state_class: type) -> dict[str, Any]:
        if STATE_CLASSES.get(state_class.__name__) is not state_class:
            raise TypeError(f"the scheduler holds a {state_class.__module__}.{state_class.__qualname__}, which is not "
                            "in STATE_CLASSES")
        fields = {name: getattr(instance, name) for name in field_names(state_class)}
        if state_class is Sequence:
            fields["generated"] = len(fields["generated"])
        encode = self.encode
        return {name: value if type(value) in ATOMS else encode(value) for name, value in fields.items()}


class TableReader:
    """Reader of a table, which creates each object when it is first referred to."""

    def __init__(self, table: StateTable, hasher: BlockHasher) -> None:
        self._table = table
        self._hasher = hasher
        self._objects: dict[int, Any] = {}
        self._decoders: dict[str, Callable[[Any], Any]] = {
            "tuple": lambda items: tuple(map(self.decode, items)), "enum": decode_enum_member,
            "bytes": bytes.fromhex, "request": request_from_json, "at": self.get_object}

    def decode(self, encoded: Any) -> Any:
        if type(encoded) is RedactedRequest:
            return rebuild_request(encoded)
        if type(encoded) is not dict:
            return encoded
        (name, content), = encoded.items()
        return self._decoders[name](content) if name in self._decoders else self._create(name, content)

    def get_object(self, index: int) -> Any:
        """Return the object at this index. All that may be part of a cycle is registered before it is filled."""
        if index in self._objects:
            return self._objects[index]
        name, content = self._table[index]
        if name == "frozenset":
            self._objects[index] = frozenset(map(self.decode, content))
        elif name in CONTAINERS:
            self._objects[index] = container = CONTAINERS[name]()
            if isinstance(container, dict):
                keys, values = content
                container.update(zip(map(self.decode, keys), map(self.decode, values), strict=True))
            else:
                (container.update if isinstance(container, set) else container.extend)(map(self.decode, content))
        else:
            self._create(name, content, index)
        return self._objects[index]

    def _create(self, name: str, fields: dict[str, Any], index: int | None = None) -> Any:
        state_class = STATE_CLASSES[name]
        instance: Any = object.__new__(state_class)
        if index is not None:
            self._objects[index] = instance
        for field, value in fields.items():
            object.__setattr__(instance, field, self.decode(value))
        for field, make_default in DERIVED_FIELDS.get(state_class, {}).items():
            object.__setattr__(instance, field, make_default())
        if state_class is Sequence:
            instance.generated = [PLACEHOLDER_TOKEN] * instance.generated
        elif state_class is RunningSequences:
            instance._hasher = self._hasher
        return instance


def decode_enum_member(qualified_name: str) -> Enum:
    kind, _, member = qualified_name.partition(".")
    return STATE_ENUMS[kind][member]


def take_snapshot(scheduler: Scheduler) -> StateTable:
    """Return the table of a scheduler's state. The scheduler itself is the first object."""
    writer = TableWriter()
    writer.encode(scheduler)
    return writer.table


def restore_scheduler(table: StateTable, hasher: BlockHasher = hash_blocks) -> Scheduler:
    """Return an independent scheduler, equal to the one in the table except for redacted requests and tokens.

    A table that does not fit this version raises KeyError, IndexError, TypeError, ValueError or AttributeError.
    """
    scheduler = TableReader(table, hasher).get_object(0)
    if not isinstance(scheduler, Scheduler):
        raise TypeError("the first object is no scheduler")
    return scheduler


def table_to_json(table: StateTable) -> str:
    return json.dumps(table, default=atom_to_json)


def atom_to_json(value: Any) -> dict[str, Any]:
    if isinstance(value, RedactedRequest):
        return {"request": redacted_request_to_json(value)}
    return {"bytes": value.hex()}


def table_differences(recorded: StateTable, replayed: StateTable) -> Iterator[str]:
    """Yield a description of each difference between two tables that were read from JSON, in the order of objects."""
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
