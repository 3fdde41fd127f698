"""The scheduler's state as a table of all objects that it consists of, which refer to each other by index.

A table is a snapshot: it shares nothing that changes with the scheduler. It is kept in memory as it is, and becomes
JSON by `table_to_json`. Every class of the scheduler that may occur is listed in STATE_CLASSES and names its fields in
`__slots__`. Restoring creates built-in values and objects of these classes only, and sets their fields without calling
their code.

In the table a list is a tuple, and a string that begins with @ is an object (@ and its index), a member of an
enumeration (@ClassName.MEMBER), in JSON an infinite number (@inf), or a string that begins so (@@...).

Two classes are special. Of a `Request` all is kept that scheduling depends on: the length of the prompt instead of its
tokens, no text, no sampling parameters. Of a `Sequence` the number of generated tokens is kept. When they are restored
every token is `PLACEHOLDER_TOKEN`. What can be found again (DERIVED_FIELDS) is left out.
"""

import json
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import isfinite
from operator import attrgetter
from typing import Any

from router.model_info import ModelInfo, StepMeasurement
from router.request import LoadableResource, Request, RequestKind, Tenant, hash_blocks
from router.scheduler.admission_control import AdmissionControl, WaitPredictor
from router.scheduler.baseline_policies import StaticPolicy
from router.scheduler.batching_policies import PoolingPolicy, PrefillTimeLedger
from router.scheduler.block_pool import BlockPool
from router.scheduler.cost_model import CostModel, StepLoad
from router.scheduler.fault_isolation import FaultIsolation
from router.scheduler.loadable_resource_cache import CachedResource, LoadableResourceCache, ResourceState
from router.scheduler.running_sequences import Batch, BlockHasher, RunningSequences
from router.scheduler.scheduler import POLICIES, Scheduler
from router.scheduler.sequence import RequestPhase, RequestTimeline, Sequence, SequenceState
from router.scheduler.sequence_table import DeadlineHeap, SequenceTable
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import LoadResource, UnloadResource
from router.scheduler.step import ChunkWrite, UnansweredPlan
from router.scheduler.waiting_queue import FairShares, QueueDemand, TenantQueue, WaitingQueue
from router.scheduler.waiting_sequence_selector import WaitingSequenceSelector

PLACEHOLDER_TOKEN, PLACEHOLDER_END_TOKEN = 0, 1  # the second one stands for a token that ended a sequence
PLACEHOLDER_END_TOKENS = frozenset({PLACEHOLDER_END_TOKEN})
KEPT_FIELDS = ("id", "max_new_tokens", "prompt_logprobs", "priority", "tenant", "timeout", "cache_namespace",
               "block_hashes", "adapter", "grammar", "kind")
STATE_CLASSES: dict[str, type] = {state_class.__name__: state_class for state_class in (
    *POLICIES.values(), AdmissionControl, Batch, BlockPool, CachedResource, ChunkWrite, CostModel, DeadlineHeap,
    FairShares, FaultIsolation, LoadResource, LoadableResource, LoadableResourceCache, ModelInfo, PoolingPolicy,
    PrefillTimeLedger, QueueDemand, RequestTimeline, RunningSequences, Scheduler, SchedulerSettings, Sequence,
    SequenceTable, StaticPolicy, StepLoad, StepMeasurement, Tenant, TenantQueue, UnansweredPlan, UnloadResource,
    WaitPredictor, WaitingQueue, WaitingSequenceSelector)}
STATE_ENUMS: dict[str, type[Enum]] = {enum.__name__: enum for enum in (
    RequestKind, RequestPhase, ResourceState, SequenceState)}
# Values that are equal to others, not identical with them; they are written where they stand, not by index.
VALUE_CLASSES = {LoadResource, LoadableResource, ModelInfo, SchedulerSettings, StepLoad, StepMeasurement, Tenant,
                 UnloadResource}
DERIVED_FIELDS: dict[type, dict[str, Callable[[], Any]]] = {
    Sequence: {"cached_prefix": list, "cached_prefix_version": lambda: None},
    RunningSequences: {"_hasher": lambda: None}}  # set by the reader
ATOMS = frozenset({type(None), bool, int, float, bytes})
INFINITIES = frozenset({"inf", "-inf"})
MAY_HOLD_FLOATS = frozenset({float, list, dict})
CONTAINERS: dict[str, Callable[..., Any]] = {
    "list": list, "set": set, "deque": deque, "dict": dict, "OrderedDict": OrderedDict}

StateTable = list[Any]

# -- redacted requests


@dataclass(frozen=True, slots=True)
class RedactedRequest:
    """A request without tokens, text and sampling parameters."""

    num_prompt_tokens: int
    num_resumed_tokens: int
    kept_values: tuple[Any, ...]  # of KEPT_FIELDS


get_kept_fields = attrgetter(*KEPT_FIELDS)
get_resource_fields = attrgetter("kind", "id", "max_bytes", "is_pinned")


def redact_request(request: Request) -> RedactedRequest:
    return RedactedRequest(len(request.prompt), len(request.resumed_tokens), get_kept_fields(request))


def redacted_request_to_json(redacted: RedactedRequest) -> dict[str, Any]:
    values = dict(zip(KEPT_FIELDS, redacted.kept_values, strict=True))
    values["tenant"] = [getattr(values["tenant"], name) for name in Tenant.__slots__]
    values["cache_namespace"] = values["cache_namespace"].hex()
    values["block_hashes"] = [name.hex() for name in values["block_hashes"]]
    for name in ("adapter", "grammar"):
        values[name] = values[name] and list(get_resource_fields(values[name]))
    if redacted.num_resumed_tokens:
        values["resumed_tokens"] = redacted.num_resumed_tokens
    return {"prompt_tokens": redacted.num_prompt_tokens, **values}


def request_from_json(values: dict[str, Any]) -> Request:
    """Rebuild a request from the JSON object that `redacted_request_to_json` returned."""
    values = dict(values)
    num_prompt_tokens, num_resumed_tokens = values.pop("prompt_tokens"), values.pop("resumed_tokens", 0)
    values["tenant"] = Tenant(*values["tenant"])
    values["cache_namespace"] = bytes.fromhex(values["cache_namespace"])
    values["block_hashes"] = tuple(map(bytes.fromhex, values["block_hashes"]))
    for name in ("adapter", "grammar"):
        values[name] = values[name] and LoadableResource(*values[name])
    values["kind"] = RequestKind(values["kind"])
    return Request(prompt=(PLACEHOLDER_TOKEN,) * num_prompt_tokens, end_tokens=PLACEHOLDER_END_TOKENS,
                   resumed_tokens=(PLACEHOLDER_TOKEN,) * num_resumed_tokens, **values)


# -- snapshots


@cache
def field_names(state_class: type) -> tuple[str, ...]:
    """Return the fields of a class that belong to its state, in the order in which they are written."""
    derived = DERIVED_FIELDS.get(state_class, {})
    return tuple(name for base in reversed(state_class.__mro__) for name in vars(base).get("__slots__", ())
                 if name != "__weakref__" and name not in derived)


def make_value_getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the tuple of these fields' values. (`attrgetter` of one name gives no tuple.)"""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda instance: tuple([getattr(instance, name) for name in names])


VALUE_GETTERS = {state_class: make_value_getter(field_names(state_class)) for state_class in STATE_CLASSES.values()}
VALUE_ENCODERS: dict[type, Callable[[Any], Any]] = {
    str: lambda text: f"@{text}" if text.startswith("@") else text,
    Request: redact_request,
    **dict.fromkeys(STATE_ENUMS.values(), lambda member: f"@{type(member).__name__}.{member.name}")}


class StateTableWriter:
    """Writer of the table. Equal schedulers give equal tables."""

    def __init__(self) -> None:
        self.table: StateTable = []
        self._indices: dict[int, int] = {}

    def encode(self, value: Any) -> Any:
        kind = type(value)
        if kind in ATOMS:
            return value
        if kind is tuple:
            return self._encode_all(value)
        if kind in VALUE_ENCODERS:
            return VALUE_ENCODERS[kind](value)
        if kind in VALUE_CLASSES:
            return {kind.__name__: self._encode_all(VALUE_GETTERS[kind](value))}
        index = self._indices.get(id(value))
        if index is None:
            index = self._indices[id(value)] = len(self.table)
            self.table.append(None)
            self.table[index] = self._encode_object(value, kind)
        return f"@{index}"

    def _encode_object(self, value: Any, kind: type) -> list[Any]:
        if kind in (list, deque):
            return [kind.__name__, self._encode_all(value)]
        if kind is Sequence:
            return ["Sequence", self._encode_all([len(part) if part is value.generated else part
                                                  for part in VALUE_GETTERS[Sequence](value)])]
        if kind in (dict, OrderedDict):
            return [kind.__name__, [self._encode_all(value), self._encode_all(value.values())]]
        if kind in (set, frozenset):
            return [kind.__name__, sorted(self._encode_all(value), key=repr)]
        state_class = Scheduler if isinstance(value, Scheduler) else kind
        if state_class not in VALUE_GETTERS:
            raise TypeError(f"the scheduler holds a {kind.__module__}.{kind.__qualname__}, which is not in "
                            "STATE_CLASSES")
        return [state_class.__name__, self._encode_all(VALUE_GETTERS[state_class](value))]

    def _encode_all(self, values: Any) -> list[Any]:
        if ATOMS.issuperset(map(type, values)):
            return [*values]
        encode = self.encode
        return [value if type(value) in ATOMS else encode(value) for value in values]


class StateTableReader:
    """Reader of a table, which creates each object when it is first referred to."""

    def __init__(self, table: StateTable, hasher: BlockHasher) -> None:
        self._table = table
        self._hasher = hasher
        self._objects: dict[int, Any] = {}

    def decode(self, encoded: Any) -> Any:
        kind = type(encoded)
        if kind is str and encoded.startswith("@"):
            return self._decode_marked(encoded[1:])
        if kind is list:
            return tuple(map(self.decode, encoded))
        if kind is not dict:
            return encoded
        (name, content), = encoded.items()
        if name == "bytes":
            return bytes.fromhex(content)
        return request_from_json(content) if name == "request" else self._create(name, content)

    def _decode_marked(self, content: str) -> Any:
        if content.startswith("@"):
            return content
        if content.isdecimal():
            return self.get_object(int(content))
        if content in INFINITIES:
            return float(content)
        enum, _, member = content.partition(".")
        return STATE_ENUMS[enum][member]

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

    def _create(self, name: str, values: list[Any], index: int | None = None) -> Any:
        state_class = STATE_CLASSES[name]
        instance: Any = object.__new__(state_class)
        if index is not None:
            self._objects[index] = instance
        for field, value in zip(field_names(state_class), values, strict=True):
            object.__setattr__(instance, field, self.decode(value))
        for field, make_default in DERIVED_FIELDS.get(state_class, {}).items():
            object.__setattr__(instance, field, make_default())
        if state_class is Sequence:
            instance.generated = [PLACEHOLDER_TOKEN] * instance.generated
        elif state_class is RunningSequences:
            instance._hasher = self._hasher
        return instance


def take_snapshot(scheduler: Scheduler) -> StateTable:
    """Return the table of a scheduler's state. The scheduler itself is the first object."""
    writer = StateTableWriter()
    writer.encode(scheduler)
    return writer.table


def restore_scheduler(table: StateTable, hasher: BlockHasher = hash_blocks) -> Scheduler:
    """Return an independent scheduler, equal to the one in the table except for redacted requests and tokens. A table
    that does not fit this version raises KeyError, IndexError, TypeError, ValueError or AttributeError."""
    scheduler = StateTableReader(table, hasher).get_object(0)
    if not isinstance(scheduler, Scheduler):
        raise TypeError("the first object is no scheduler")
    return scheduler


def table_to_json(table: StateTable) -> str:
    return json.dumps(mark_infinities(table), allow_nan=False, default=lambda value: (
        {"request": redacted_request_to_json(value)} if isinstance(value, RedactedRequest) else {"bytes": value.hex()}))


def mark_infinities(value: Any) -> Any:
    """Return a part of a table with "@inf" for infinity, for which JSON has no number."""
    kind = type(value)
    if kind is float:
        return value if isfinite(value) else f"@{value}"
    if kind is dict:
        return {name: mark_infinities(content) for name, content in value.items()}
    if kind is not list or not MAY_HOLD_FLOATS.intersection(map(type, value)):
        return value
    return [mark_infinities(part) for part in value]


def table_differences(recorded: StateTable, replayed: StateTable) -> Iterator[str]:
    """Yield a description of each difference between two tables that were read from JSON, in the order of objects."""
    for index, (before, after) in enumerate(zip(recorded, replayed, strict=False)):
        if before != after:
            yield f"object {index}, {_describe_difference(before, after)}"
    if len(recorded) != len(replayed):
        yield f"{len(recorded)} objects were recorded, there are {len(replayed)}"


def _describe_difference(before: list[Any], after: list[Any]) -> str:
    if before[0] == after[0] and before[0] in STATE_CLASSES:
        fields = zip(field_names(STATE_CLASSES[before[0]]), before[1], after[1], strict=False)
        return f"a {before[0]}: " + ", ".join(f"{name} was {old!r} and is {new!r}" for name, old, new in fields
                                              if old != new)
    return f"a {before[0]}: was {str(before[1])[:80]} and is a {after[0]}: {str(after[1])[:80]}"
