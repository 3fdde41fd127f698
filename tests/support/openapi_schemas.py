"""Subset of JSON schema that our OpenAPI document uses: validate a value, make a sample, list every field."""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

Schema = dict[str, Any]
MakeBody = Callable[[Any], Any]  # makes a whole body from the value of one field

TYPE_CHECKS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}
# the type that a keyword constrains, and its check
KEYWORD_CHECKS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("number", lambda value, least: value >= least),
    "maximum": ("number", lambda value, most: value <= most),
    "exclusiveMinimum": ("number", lambda value, bound: value > bound),
    "exclusiveMaximum": ("number", lambda value, bound: value < bound),
    "minLength": ("string", lambda value, least: len(value) >= least),
    "maxLength": ("string", lambda value, most: len(value) <= most),
    "minItems": ("array", lambda value, least: len(value) >= least),
    "maxItems": ("array", lambda value, most: len(value) <= most),
}


class DocumentSchemas:
    """Named schemas of a document. `valid_samples` has a valid value for each schema whose minimal sample is not
    valid."""

    def __init__(self, schemas: dict[str, Schema], valid_samples: dict[str, Any]) -> None:
        self._schemas = schemas
        self._valid_samples = valid_samples

    def is_valid(self, schema: Schema, value: Any) -> bool:
        schema = self._resolve_reference(schema)
        if (kinds := list_schema_alternatives(schema)) and not any(self.is_valid(kind, value) for kind in kinds):
            return False
        if "type" in schema and not TYPE_CHECKS[schema["type"]](value):
            return False
        if not all(is_allowed(value, schema[keyword]) for keyword, (kind, is_allowed) in KEYWORD_CHECKS.items()
                   if keyword in schema and TYPE_CHECKS[kind](value)):
            return False
        if "const" in schema and value != schema["const"]:
            return False
        return value in schema.get("enum", [value]) and self._are_parts_valid(schema, value)

    def _are_parts_valid(self, schema: Schema, value: Any) -> bool:
        if isinstance(value, list):
            return all(self.is_valid(schema.get("items", {}), item) for item in value)
        if isinstance(value, dict):
            properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
            others = others if isinstance(others, dict) else {}
            name_pattern = schema.get("propertyNames", {}).get("pattern", "")
            return (set(schema.get("required", ())) <= set(value) and all(
                re.search(name_pattern, name) and self.is_valid(properties.get(name, others), part)
                for name, part in value.items()))
        return True

    def make_sample(self, schema: Schema) -> Any:
        """Return a minimal value that fits the schema."""
        name = schema.get("$ref", "").rpartition("/")[2]
        if name in self._valid_samples:
            return self._valid_samples[name]
        schema = self._resolve_reference(schema)
        if kinds := list_schema_alternatives(schema):
            return self.make_sample(kinds[0])
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][0]
        if schema["type"] == "object":
            return {name: self.make_sample(schema["properties"][name]) for name in schema.get("required", ())}
        return {"string": "x", "integer": schema.get("minimum", 0), "number": schema.get("minimum", 0),
                "array": [self.make_sample(schema["items"])] if "items" in schema else []}[schema["type"]]

    def iter_fields(self, schema: Schema) -> Iterator[tuple[str, MakeBody]]:
        """Yield the path of every field, also within list items, and a function that makes a whole body of a value."""
        for path, object_schema, make_body in self.iter_objects(schema):
            for name in object_schema["properties"]:
                yield f"{path}.{name}", self.make_field_body(object_schema, name, make_body)

    def iter_objects(self, schema: Schema, make_body: MakeBody = lambda value: value,
                     path: str = "") -> Iterator[tuple[str, Schema, MakeBody]]:
        """Yield the path of every object that has fields, its schema, and a function that makes a whole body of it."""
        schema = self._resolve_reference(schema)
        for kind in list_schema_alternatives(schema):
            yield from self.iter_objects(kind, make_body, path)
        if "items" in schema:
            yield from self.iter_objects(schema["items"], lambda value: make_body([value]), f"{path}[]")
        if "properties" in schema:
            yield path, schema, make_body
        for name, field_schema in schema.get("properties", {}).items():
            yield from self.iter_objects(field_schema, self.make_field_body(schema, name, make_body), f"{path}.{name}")

    def make_field_body(self, schema: Schema, name: str, make_body: MakeBody) -> MakeBody:
        """Return a function that sets this field in an object with all its required fields."""
        base_sample = next((good for kind, good in self._valid_samples.items() if self._schemas.get(kind) is schema),
                           None)
        return lambda value: make_body({**(self.make_sample(schema) if base_sample is None else base_sample),
                                        name: value})

    def _resolve_reference(self, schema: Schema) -> Schema:
        return self._schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def list_schema_alternatives(schema: Schema) -> list[Schema]:
    """Return the schemas of which a value must fit one."""
    return schema.get("anyOf") or schema.get("oneOf") or []
