"""Subset of JSON schema that our OpenAPI document uses: validate a value, make a sample, list every field."""

import math
from collections.abc import Callable, Iterator
from typing import Any

Schema = dict[str, Any]
Put = Callable[[Any], Any]  # makes a whole body from the value of one field

TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}
WORDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {  # the type that a keyword constrains, and its check
    "minimum": ("number", lambda value, least: value >= least),
    "maximum": ("number", lambda value, most: value <= most),
    "exclusiveMinimum": ("number", lambda value, bound: value > bound),
    "exclusiveMaximum": ("number", lambda value, bound: value < bound),
    "minLength": ("string", lambda value, least: len(value) >= least),
    "maxLength": ("string", lambda value, most: len(value) <= most),
    "minItems": ("array", lambda value, least: len(value) >= least),
}


class Described:
    """Named schemas of a document. `good` has a valid value for each schema whose minimal sample is not valid."""

    def __init__(self, schemas: dict[str, Schema], good: dict[str, Any]) -> None:
        self._schemas = schemas
        self._good = good

    def fits(self, schema: Schema, value: Any) -> bool:
        schema = self._found(schema)
        if "anyOf" in schema and not any(self.fits(kind, value) for kind in schema["anyOf"]):
            return False
        if "type" in schema and not TYPES[schema["type"]](value):
            return False
        if not all(asks(value, schema[word]) for word, (kind, asks) in WORDS.items()
                   if word in schema and TYPES[kind](value)):
            return False
        if "const" in schema and value != schema["const"]:
            return False
        return value in schema.get("enum", [value]) and self._parts_fit(schema, value)

    def _parts_fit(self, schema: Schema, value: Any) -> bool:
        if isinstance(value, list):
            return all(self.fits(schema.get("items", {}), item) for item in value)
        if isinstance(value, dict):
            return set(schema.get("required", ())) <= set(value) and all(
                self.fits(about, value[name]) for name, about in schema.get("properties", {}).items() if name in value)
        return True

    def sample(self, schema: Schema) -> Any:
        """Return a minimal value that fits the schema."""
        name = schema.get("$ref", "").rpartition("/")[2]
        if name in self._good:
            return self._good[name]
        schema = self._found(schema)
        if "anyOf" in schema:
            return self.sample(schema["anyOf"][0])
        if "const" in schema:
            return schema["const"]
        if schema["type"] == "object":
            return {name: self.sample(schema["properties"][name]) for name in schema.get("required", ())}
        return {"string": "x", "array": [self.sample(schema["items"])] if "items" in schema else []}[schema["type"]]

    def places(self, schema: Schema, put: Put = lambda value: value, way: str = "") -> Iterator[tuple[str, Put]]:
        """Yield the path of every field, also within list items, and a function that makes a whole body of a value."""
        schema = self._found(schema)
        for kind in schema.get("anyOf", ()):
            yield from self.places(kind, put, way)
        if "items" in schema:
            yield from self.places(schema["items"], lambda value: put([value]), f"{way}[]")
        for name, about in schema.get("properties", {}).items():
            inner = self._field(schema, name, put)
            yield f"{way}.{name}", inner
            yield from self.places(about, inner, f"{way}.{name}")

    def _field(self, schema: Schema, name: str, put: Put) -> Put:
        """Return a function that sets this field in an object with all its required fields."""
        least = next((good for kind, good in self._good.items() if self._schemas.get(kind) is schema), None)
        return lambda value: put({**(self.sample(schema) if least is None else least), name: value})

    def _found(self, schema: Schema) -> Schema:
        return self._schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
