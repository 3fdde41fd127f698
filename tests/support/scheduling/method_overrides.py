"""Replacement of methods of one object whose fields are slots, which takes no attributes of its own."""

from collections.abc import Callable
from typing import Any


def override_methods(instance: Any, **methods: Callable[..., Any]) -> None:
    """Have calls of these methods of `instance` call the functions instead, without the instance."""
    instance.__class__ = type(type(instance).__name__, (type(instance),), {
        "__slots__": (), **{name: staticmethod(function) for name, function in methods.items()}})


def restore_methods(instance: Any, original_class: type) -> None:
    """Undo all overrides of an instance of this class."""
    instance.__class__ = original_class
