"""Prints the names of the fields of types, as JSON by type: `python print_type_fields.py MODULE:TYPE ...`."""

import json
import sys
from importlib import import_module
from typing import get_type_hints


def list_fields(path: str) -> list[str]:
    """Return the fields of a `TypedDict`, or of a model of pydantic."""
    module_name, _, type_name = path.partition(":")
    found = getattr(import_module(module_name), type_name)
    return sorted(getattr(found, "model_fields", None) or get_type_hints(found))


json.dump({path: list_fields(path) for path in sys.argv[1:]}, sys.stdout)
