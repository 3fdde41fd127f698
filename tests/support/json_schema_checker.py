"""JSON schema validator for the keywords that our tests use.

It is independent of the library that constrains generated output to a schema.
"""

import json
import re
from collections.abc import Callable
from typing import Any


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


TYPE_CHECKS: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": is_number,
    "integer": lambda value: is_number(value) and value == int(value),
}
KEYWORD_CHECKS: dict[str, Callable[[Any, Any], bool]] = {  # take the keyword's value and the value to validate
    "enum": lambda choices, value: any(is_same_json(value, choice) for choice in choices),
    "const": lambda constant, value: is_same_json(value, constant),
    "minimum": lambda minimum, value: not is_number(value) or value >= minimum,
    "maximum": lambda maximum, value: not is_number(value) or value <= maximum,
    "multipleOf": lambda divisor, value: not is_number(value) or value % divisor == 0,
    "minLength": lambda minimum, value: not isinstance(value, str) or len(value) >= minimum,
    "maxLength": lambda maximum, value: not isinstance(value, str) or len(value) <= maximum,
    "pattern": lambda pattern, value: not isinstance(value, str) or re.search(pattern, value) is not None,
    "minItems": lambda minimum, value: not isinstance(value, list) or len(value) >= minimum,
    "maxItems": lambda maximum, value: not isinstance(value, list) or len(value) <= maximum,
    "required": lambda names, value: not isinstance(value, dict) or set(names) <= set(value),
}
UNCHECKED_KEYWORDS = {"$defs", "title", "description", "discriminator", "properties", "additionalProperties", "items",
                      "prefixItems", "type", "anyOf", "oneOf", "allOf", "$ref"}


def is_same_json(first: Any, second: Any) -> bool:
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def is_valid_for_schema(schema: Any, value: Any, root: Any = None) -> bool:
    root = schema if root is None else root
    if isinstance(schema, bool):
        return schema
    assert set(schema) <= set(KEYWORD_CHECKS) | UNCHECKED_KEYWORDS, set(schema) - set(
        KEYWORD_CHECKS) - UNCHECKED_KEYWORDS
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    return (
        (not types or any(TYPE_CHECKS[kind](value) for kind in types))
        and all(rule(schema[key], value) for key, rule in KEYWORD_CHECKS.items() if key in schema)
        and is_valid_for_subschemas(schema, value, root)
        and (not isinstance(value, dict) or are_properties_valid(schema, value, root))
        and (not isinstance(value, list) or are_items_valid(schema, value, root)))


def is_valid_for_subschemas(schema: Any, value: Any, root: Any) -> bool:
    if "$ref" in schema:
        *_, name = schema["$ref"].split("/")
        return is_valid_for_schema(root if schema["$ref"] == "#" else root["$defs"][name], value, root)
    return (
        ("anyOf" not in schema or any(is_valid_for_schema(part, value, root) for part in schema["anyOf"]))
        and ("oneOf" not in schema or sum(is_valid_for_schema(part, value, root) for part in schema["oneOf"]) == 1)
        and all(is_valid_for_schema(part, value, root) for part in schema.get("allOf", [])))


def are_properties_valid(schema: Any, value: dict[str, Any], root: Any) -> bool:
    known, additional_schema = schema.get("properties", {}), schema.get("additionalProperties", True)
    return all(is_valid_for_schema(known.get(name, additional_schema), inner, root) for name, inner in value.items())


def are_items_valid(schema: Any, value: list[Any], root: Any) -> bool:
    prefix_schemas = schema.get("prefixItems", [])
    return (all(is_valid_for_schema(part, inner, root) for part, inner in zip(prefix_schemas, value, strict=False))
            and all(is_valid_for_schema(schema.get("items", True), inner, root)
                    for inner in value[len(prefix_schemas):]))
