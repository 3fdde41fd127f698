"""Classes of the scheduler and the fields of their objects, found by inspection so that they are never out of date.

The `__dict__` of an object is never accessed: after the first access Python 3.11 and 3.12 keep the object's fields in a
dictionary, which makes the scheduler a tenth slower.
"""

import sys
from collections.abc import Iterator
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

from router.scheduler import scheduler

MISSING = object()


def reachable_modules(root_module: ModuleType) -> list[ModuleType]:
    """Return the root and every module of its package that it takes classes or functions from, even indirectly."""
    package = root_module.__name__.partition(".")[0] + "."
    found, waiting = {root_module.__name__: root_module}, [root_module]
    while waiting:
        names = {getattr(thing, "__module__", None) or "" for thing in vars(waiting.pop()).values()}
        for name in sorted(name for name in names if name.startswith(package) and name not in found):
            found[name] = sys.modules[name]
            waiting.append(found[name])
    return list(found.values())


SCHEDULER_CLASSES: dict[str, type] = {
    name: thing for module in reachable_modules(scheduler) for name, thing in vars(module).items()
    if isinstance(thing, type) and thing.__module__ == module.__name__}


def object_fields(instance: Any) -> dict[str, Any]:
    values = ((name, getattr(instance, name, MISSING)) for name in field_names(type(instance)))  # type: ignore[arg-type]  # classes have hashes
    return {name: value for name, value in values if value is not MISSING}


@cache
def field_names(object_type: type) -> tuple[str, ...]:
    """Return the names of all fields that an object of this class may have.

    These are its slots. If its objects have a `__dict__`, dataclass fields are added, and all names in the byte code of
    its methods that are no attributes of the class; names of other objects' fields are among them and do no harm.
    """
    slots = tuple(name for base in reversed(object_type.__mro__) for name in vars(base).get("__slots__", ())
                  if name != "__weakref__")
    if not has_instance_dict(object_type):
        return slots
    known = {name for name in names_in_bytecode(object_type) if not hasattr(object_type, name)}
    return (*slots, *sorted(known | set(getattr(object_type, "__dataclass_fields__", ()))))


def has_instance_dict(object_type: type) -> bool:
    return any("__dict__" in vars(base) for base in object_type.__mro__)


def names_in_bytecode(object_type: type) -> Iterator[str]:
    for base in object_type.__mro__:
        for function in vars(base).values():
            if isinstance(function, FunctionType):
                yield from function.__code__.co_names


def is_value_type(object_type: type) -> bool:
    """Return whether equal objects of this class are interchangeable: it is a frozen dataclass compared by value."""
    parameters = getattr(object_type, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen and parameters.eq)
