"""JSON schema validator for the keywords that our tests use.

It is independent of the library that constrains generated output to a schema.
"""

import json
import re
from collections.abc import Callable
from typing import Any


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": is_number,
    "integer": lambda value: is_number(value) and value == int(value),
}
RULES: dict[str, Callable[[Any, Any], bool]] = {  # take the keyword's value and the value to validate
    "enum": lambda given, value: any(same(value, one) for one in given),
    "const": lambda given, value: same(value, given),
    "minimum": lambda given, value: not is_number(value) or value >= given,
    "maximum": lambda given, value: not is_number(value) or value <= given,
    "multipleOf": lambda given, value: not is_number(value) or value % given == 0,
    "minLength": lambda given, value: not isinstance(value, str) or len(value) >= given,
    "maxLength": lambda given, value: not isinstance(value, str) or len(value) <= given,
    "pattern": lambda given, value: not isinstance(value, str) or re.search(given, value) is not None,
    "minItems": lambda given, value: not isinstance(value, list) or len(value) >= given,
    "maxItems": lambda given, value: not isinstance(value, list) or len(value) <= given,
    "required": lambda given, value: not isinstance(value, dict) or set(given) <= set(value),
}
REMARKS = {"$defs", "title", "description", "discriminator", "properties", "additionalProperties", "items",
           "prefixItems", "type", "anyOf", "oneOf", "allOf", "$ref"}


def same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def fits(schema: Any, value: Any, root: Any = None) -> bool:
    root = schema if root is None else root
    if isinstance(schema, bool):
        return schema
    assert set(schema) <= set(RULES) | REMARKS, set(schema) - set(RULES) - REMARKS
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return (
        (not kinds or any(TYPES[kind](value) for kind in kinds))
        and all(rule(schema[key], value) for key, rule in RULES.items() if key in schema)
        and fits_others(schema, value, root)
        and (not isinstance(value, dict) or fits_properties(schema, value, root))
        and (not isinstance(value, list) or fits_items(schema, value, root)))


def fits_others(schema: Any, value: Any, root: Any) -> bool:
    if "$ref" in schema:
        *_, name = schema["$ref"].split("/")
        return fits(root if schema["$ref"] == "#" else root["$defs"][name], value, root)
    return (
        ("anyOf" not in schema or any(fits(part, value, root) for part in schema["anyOf"]))
        and ("oneOf" not in schema or sum(fits(part, value, root) for part in schema["oneOf"]) == 1)
        and all(fits(part, value, root) for part in schema.get("allOf", [])))


def fits_properties(schema: Any, value: dict[str, Any], root: Any) -> bool:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    return all(fits(known.get(name, others), inner, root) for name, inner in value.items())


def fits_items(schema: Any, value: list[Any], root: Any) -> bool:
    first = schema.get("prefixItems", [])
    return all(fits(part, inner, root) for part, inner in zip(first, value, strict=False)) and all(
        fits(schema.get("items", True), inner, root) for inner in value[len(first):])
