"""Grammars of requests: the parameters of all dialects, read into one form, a JSON schema or a regular expression.

    text-generation-inference   {"type": "json", "value": SCHEMA}, also json_object; SCHEMA as an object or as its text
                                {"type": "json_schema", "value": {"name": ..., "schema": SCHEMA}}
                                {"type": "regex", "value": "..."}
    OpenAI                      {"type": "json_schema", "json_schema": {"name": ..., "schema": SCHEMA, "strict": ...}}
                                {"type": "json_object"}, {"type": "text"}
    LoRAX                       {"type": "json_object", "schema": SCHEMA}

Grammars that are too large, too deep or only partly supported are rejected here, before any further processing. The
compiler checks whether the rest is valid.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pydantic_core import from_json

from router.errors import InvalidRequest

MOST_CHARACTERS = 262_144
MOST_DEPTH = 64
MOST_REPETITIONS = 65_536
OBJECT: dict[str, Any] = {"type": "object"}  # schema of `json_object` without a schema
JSON_TYPES = ("json", "json_object", "json_schema")
# Keywords whose value maps names to schemas (NAMED), or consists of plain values that are no schemas (VALUES).
NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
VALUES = frozenset({"enum", "const", "default", "examples"})
# Options of the compiler, which could switch off its checks, and keywords of old drafts, which the compiler ignores.
REFUSED = frozenset({"x-guidance", "%llguidance", "divisibleBy", "disallow", "extends"})
REPETITION = re.compile(r"\\.|\{(\d*),?(\d*)\}", re.DOTALL)  # an escaped brace does not open a repetition

Found = tuple[str, dict[str, Any]]  # path of a schema in the request, and the schema


@dataclass(frozen=True, slots=True)
class Grammar:
    kind: str  # "json_schema" or "regex"
    source: str

    @property
    def digest(self) -> bytes:
        return sha256(f"{self.kind}:{self.source}".encode()).digest()


def read_grammar(name: str, given: object) -> Grammar | None:
    """Read the grammar given in the parameter `name`; None if it allows any text. Raises InvalidRequest."""
    kind = given.get("type") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(kind, str):
        raise InvalidRequest(f"`{name}` must be an object with a `type`")
    if kind == "text":
        return None
    if kind == "regex":
        return regex(f"{name}.value", given.get("value"))
    if kind in JSON_TYPES:
        return json_schema(*schema_of(name, kind, given))
    raise InvalidRequest(f"`{name}.type` must be one of {', '.join(JSON_TYPES)}, regex or text, got `{kind[:40]}`")


def schema_of(name: str, kind: str, given: dict[str, Any]) -> tuple[str, Any]:
    """Return the path of the schema in the request, and its value."""
    places = ("json_schema", "value") if kind == "json_schema" else ("value", "schema")
    place = next((place for place in places if given.get(place) is not None), None)
    if place is None and kind == "json_object":
        return name, OBJECT
    if place is None:
        raise InvalidRequest(f"`{name}.{places[0]}` is missing: it holds the JSON schema")
    where, found = f"{name}.{place}", given[place]
    if kind != "json_schema":
        return where, found
    found = parsed(where, found)
    if not isinstance(found, dict) or found.get("schema") is None:
        raise InvalidRequest(f"`{where}` must be an object with a `schema`")
    return f"{where}.schema", found["schema"]


def json_schema(where: str, given: object) -> Grammar:
    schema = parsed(where, given)
    if not isinstance(schema, dict):
        raise InvalidRequest(f"`{where}` must be a JSON schema: an object, or a string that holds one")
    check_depth(where, schema)
    for place, part in schemas(where, schema):
        check_schema(place, part)
    try:
        source = json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise InvalidRequest(f"`{where}` holds a number that is not finite") from None
    check_text(where, source)
    return Grammar("json_schema", source)


def regex(where: str, given: object) -> Grammar:
    if not isinstance(given, str) or not given:
        raise InvalidRequest(f"`{where}` must be a regular expression, as a string that is not empty")
    check_text(where, given)
    check_repetitions(where, given)
    return Grammar("regex", given)


def parsed(where: str, given: object) -> object:
    """Return a string parsed as JSON, and every other value unchanged."""
    if not isinstance(given, str):
        return given
    check_text(where, given)
    try:
        return from_json(given, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"`{where}` is a string that holds no JSON: {error}") from None


def check_text(where: str, text: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise InvalidRequest(f"`{where}` must have at most {MOST_CHARACTERS} characters, got {len(text)}")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InvalidRequest(f"`{where}` holds half of a surrogate pair, which is no character")


def check_depth(where: str, value: object) -> None:
    """Check the nesting level by level: recursion could overflow the stack."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MOST_DEPTH:
            raise InvalidRequest(f"`{where}` must be nested at most {MOST_DEPTH} levels deep")
        level = [inner for outer in level for inner in children(outer) if isinstance(inner, dict | list)]


def children(value: object) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def schemas(where: str, schema: dict[str, Any]) -> Iterator[Found]:
    """Yield the schema and all schemas nested in it, each with its path."""
    yield where, schema
    for key, value in schema.items():
        if key not in VALUES:
            yield from below(f"{where}.{key}", value, named=key in NAMED)


def below(where: str, value: object, *, named: bool) -> Iterator[Found]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from below(f"{where}.{index}", item, named=False)
    elif isinstance(value, dict) and named:
        for name, item in value.items():
            yield from below(f"{where}.{name}", item, named=False)
    elif isinstance(value, dict):
        yield from schemas(where, value)


def check_schema(where: str, schema: dict[str, Any]) -> None:
    for key in REFUSED & schema.keys():
        raise InvalidRequest(f"`{where}.{key}` is not supported, and would be ignored; leave it out")
    if isinstance(pattern := schema.get("pattern"), str):
        check_repetitions(f"{where}.pattern", pattern)
    if isinstance(patterns := schema.get("patternProperties"), dict):
        for pattern in patterns:
            check_repetitions(f"{where}.patternProperties", pattern)


def check_repetitions(where: str, pattern: str) -> None:
    """Check the counts of repetitions by their first nine digits: `int` raises an error for thousands of digits."""
    for found in REPETITION.finditer(pattern):
        for digits in found.groups():
            if digits and int(digits.lstrip("0")[:9] or 0) > MOST_REPETITIONS:
                raise InvalidRequest(f"`{where}` must repeat nothing more than {MOST_REPETITIONS} times, "
                                     f"got {digits[:40]}")
