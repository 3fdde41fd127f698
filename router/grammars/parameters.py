"""Grammars of requests: the parameters of all dialects, read into one form: a JSON schema, a regular expression or a
context-free grammar.

    text-generation-inference   {"type": "json", "value": SCHEMA}, also json_object; SCHEMA as an object or as its text
                                {"type": "json_schema", "value": {"name": ..., "schema": SCHEMA}}
                                {"type": "regex", "value": "..."}
    OpenAI                      {"type": "json_schema", "json_schema": {"name": ..., "schema": SCHEMA, "strict": ...}}
                                {"type": "json_object"}, {"type": "text"}
    LoRAX                       {"type": "json_object", "schema": SCHEMA}
    vLLM                        `structured_outputs` with json, regex, choice, grammar or json_object; or `guided_json`,
                                `guided_regex`, `guided_choice`, `guided_grammar`

Grammars that are too large, too deep or only partly supported are rejected here; the compiler checks the rest.
"""

import json
import re
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import unquote

from pydantic_core import from_json

from router.errors import InvalidRequest
from router.grammars.output_grammar_writer import quote_for_lark
from router.text.prompt_encoder import check_text

MAX_CHARACTERS = 262_144
MAX_DEPTH = 64
MAX_SCHEMA_PARTS = 16_384  # lists and objects of a JSON schema
MAX_REPETITIONS = 65_536
ANY_OBJECT_SCHEMA: dict[str, Any] = {"type": "object"}  # schema of `json_object` without a schema
JSON_GRAMMAR_TYPES = ("json", "json_object", "json_schema")
# Keywords whose value maps names to schemas, and those whose value consists of plain values that are no schemas.
SCHEMA_MAP_KEYWORDS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
PLAIN_VALUE_KEYWORDS = frozenset({"enum", "const", "default", "examples"})
ANCHOR_KEYWORDS = ("$anchor", "$dynamicAnchor")
MAX_REFERENCE_CHARS_IN_ERROR = 100
# Options of the compiler, which could switch off its checks, and keywords of old drafts, which the compiler ignores.
UNSUPPORTED_KEYWORDS = frozenset({"x-guidance", "%llguidance", "divisibleBy", "disallow", "extends"})
UNSUPPORTED_DIRECTIVES = ("%llguidance", "%json")  # of context-free grammars, for the same reason
REPETITION_PATTERN = re.compile(r"\\.|\{(\d*+),?(\d*+)\}", re.DOTALL)  # an escaped brace does not open a repetition


@dataclass(frozen=True, slots=True)
class Grammar:
    """A JSON schema, regular expression, context-free grammar or tree of these (chat_grammar.py) that the output of a
    request must match."""

    kind: str  # "json_schema", "regex", "grammar" (of Lark or of llama.cpp's GBNF) or "output"
    source: str
    # Fault of a JSON schema, for the error if it cannot be compiled: a reference that leads nowhere; empty without one.
    reference_fault: str = field(default="", compare=False)
    resumed_tokens: tuple[int, ...] = ()  # of the output, generated earlier, which must fit it

    @property
    def digest(self) -> bytes:
        hasher = sha256(f"{self.kind}:{self.source}".encode())
        if self.resumed_tokens:
            hasher.update(b"\0" + array("Q", self.resumed_tokens).tobytes())
        return hasher.digest()


def parse_grammar(parameter: str, value: object) -> Grammar | None:
    """Read the grammar that a parameter of the request holds; None if it allows any text. Raises InvalidRequest."""
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(kind, str):
        raise InvalidRequest(f"`{parameter}` must be an object with a `type`")
    if kind == "text":
        return None
    if kind == "regex":
        return make_regex_grammar(f"{parameter}.value", value.get("value"))
    if kind in JSON_GRAMMAR_TYPES:
        return make_json_schema_grammar(*find_json_schema(parameter, kind, value))
    raise InvalidRequest(
        f"`{parameter}.type` must be one of {', '.join(JSON_GRAMMAR_TYPES)}, regex or text, got `{kind[:40]}`")


def make_regex_grammar(path: str, pattern: object) -> Grammar:
    if not isinstance(pattern, str) or not pattern:
        raise InvalidRequest(f"`{path}` must be a regular expression, as a string that is not empty")
    check_text(path, pattern, MAX_CHARACTERS)
    check_repetitions(path, pattern)
    return Grammar("regex", pattern)


def make_choice_grammar(path: str, choices: object) -> Grammar:
    """Return the grammar of an output that is one of these texts."""
    if not isinstance(choices, list) or not choices or not all(isinstance(text, str) and text for text in choices):
        raise InvalidRequest(f"`{path}` must be a list of texts that are not empty")
    source = "start: " + " | ".join(map(quote_for_lark, dict.fromkeys(choices)))
    check_text(path, source, MAX_CHARACTERS)
    return Grammar("grammar", source)


def make_context_free_grammar(path: str, source: object) -> Grammar:
    if not isinstance(source, str) or not source.strip():
        raise InvalidRequest(f"`{path}` must be a grammar of Lark or GBNF, as a string that is not empty")
    check_text(path, source, MAX_CHARACTERS)
    check_repetitions(path, source)
    for directive in UNSUPPORTED_DIRECTIVES:
        if directive in source:
            raise InvalidRequest(f"`{path}` must not contain `{directive}`; leave it out")
    return Grammar("grammar", source)


def find_json_schema(parameter: str, kind: str, value: dict[str, Any]) -> tuple[str, Any]:
    """Return the path of the schema in the request, and its value."""
    keys = ("json_schema", "value") if kind == "json_schema" else ("value", "schema")
    key = next((place for place in keys if value.get(place) is not None), None)
    if key is None and kind == "json_object":
        return parameter, ANY_OBJECT_SCHEMA
    if key is None:
        raise InvalidRequest(f"`{parameter}.{keys[0]}` is missing: it holds the JSON schema")
    path, schema = f"{parameter}.{key}", value[key]
    if kind != "json_schema":
        return path, schema
    schema = parse_json_if_string(path, schema)
    if not isinstance(schema, dict) or schema.get("schema") is None:
        raise InvalidRequest(f"`{path}` must be an object with a `schema`")
    return f"{path}.schema", schema["schema"]


def make_json_schema_grammar(path: str, value: object) -> Grammar:
    schema = parse_json_if_string(path, value)
    if not isinstance(schema, dict):
        raise InvalidRequest(f"`{path}` must be a JSON schema: an object, or a string that holds one")
    schemas = list_schemas(path, schema)
    try:
        source = json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise InvalidRequest(f"`{path}` holds a number that is not finite") from None
    check_text(path, source, MAX_CHARACTERS)
    for part in schemas:
        check_schema_keywords(path, part)
    return Grammar("json_schema", source, find_reference_fault(schemas))


def parse_json_if_string(path: str, value: object) -> object:
    """Return a string parsed as JSON, and every other value unchanged."""
    if not isinstance(value, str):
        return value
    check_text(path, value, MAX_CHARACTERS, may_be_empty=True)
    try:
        return from_json(value, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"`{path}` is a string that holds no JSON: {error}") from None


class SchemaPart(NamedTuple):
    """A list or object in a JSON schema, with the part that holds it. A path of each as text could take gigabytes."""

    value: dict[str, Any] | list[Any]
    parent: "SchemaPart | None" = None
    key: str | int = ""  # in the parent
    depth: int = 1
    is_schema: bool = True  # if the value is an object; not so for plain ones, and for maps of names to schemas
    is_plain: bool = False  # whether the value is, or is within, a plain value

    def list_entries(self) -> list[tuple[str | int, dict[str, Any] | list[Any]]]:
        """Return the lists and objects in the value, with their keys."""
        entries = self.value.items() if isinstance(self.value, dict) else enumerate(self.value)
        return [(key, value) for key, value in entries if isinstance(value, dict | list)]

    def make_inner_part(self, key: str | int, value: dict[str, Any] | list[Any]) -> "SchemaPart":
        if not self.is_schema or isinstance(self.value, list):
            return SchemaPart(value, self, key, self.depth + 1, not self.is_plain, self.is_plain)
        is_plain = key in PLAIN_VALUE_KEYWORDS
        return SchemaPart(value, self, key, self.depth + 1, not is_plain and key not in SCHEMA_MAP_KEYWORDS, is_plain)

    def format_path(self, *last_keys: str) -> str:
        """Return the keys that lead from the schema to this part, and these."""
        keys: list[str] = [*reversed(last_keys)]
        part = self
        while part.parent is not None:
            keys.append(str(part.key))
            part = part.parent
        return ".".join(reversed(keys))


def list_schemas(path: str, schema: dict[str, Any]) -> list[SchemaPart]:
    """Return the schema and all schemas in it, outer ones first. Raises InvalidRequest for one that is nested too
    deeply or has too many parts."""
    schemas: list[SchemaPart] = []
    num_parts = 0
    waiting = [SchemaPart(schema)]
    while waiting:
        part = waiting.pop()
        num_parts += 1
        if part.depth > MAX_DEPTH:
            raise InvalidRequest(f"`{path}` must be nested at most {MAX_DEPTH} levels deep")
        if part.is_schema and isinstance(part.value, dict):
            schemas.append(part)
        entries = part.list_entries()
        if (num_found := num_parts + len(waiting) + len(entries)) > MAX_SCHEMA_PARTS:
            raise InvalidRequest(f"`{path}` must hold at most {MAX_SCHEMA_PARTS} lists and objects, got {num_found} "
                                 "or more")
        waiting += [part.make_inner_part(key, value) for key, value in reversed(entries)]
    return schemas


def check_schema_keywords(path: str, part: SchemaPart) -> None:
    schema = part.value
    assert isinstance(schema, dict), "a schema is an object"
    for key in UNSUPPORTED_KEYWORDS & schema.keys():
        raise InvalidRequest(f"`{path}.{part.format_path(key)}` is not supported, and would be ignored; leave it out")
    patterns = schema.get("patternProperties")
    for key, texts in (("pattern", [schema.get("pattern")]),
                       ("patternProperties", patterns if isinstance(patterns, dict) else ())):
        for text in texts:
            if isinstance(text, str) and (digits := find_excessive_repetition(text)):
                raise make_repetition_error(f"{path}.{part.format_path(key)}", digits)


def find_reference_fault(schemas: Sequence[SchemaPart]) -> str:
    """Return a description of the first reference that does not lead to a part of the whole schema, which is the first
    of `schemas`; empty if there is none, or if a part has an id of its own, which references may be relative to."""
    values = [part.value for part in schemas if isinstance(part.value, dict)]
    if any("$id" in schema for schema in values):
        return ""
    anchors = {schema[key] for schema in values for key in ANCHOR_KEYWORDS if isinstance(schema.get(key), str)}
    for part, schema in zip(schemas, values, strict=True):
        reference = schema.get("$ref")
        if isinstance(reference, str) and not is_reference_valid(reference, values[0], anchors):
            # the path within the schema: dialects have different names for that
            return (f"the reference `{reference[:MAX_REFERENCE_CHARS_IN_ERROR]}` at `{part.format_path('$ref')}` leads "
                    "to no part of the JSON schema")
    return ""


def is_reference_valid(reference: str, schema: dict[str, Any], anchors: Collection[str | None]) -> bool:
    document, _, fragment = reference.partition("#")
    if document or (fragment and not fragment.startswith("/")):
        return not document and fragment in anchors
    part: Any = schema
    for token in unquote(fragment).split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(part, dict) and key in part:
            part = part[key]
        elif isinstance(part, list) and key.isdecimal() and int(key[:9]) < len(part):
            part = part[int(key[:9])]
        else:
            return False
    return True


def check_repetitions(path: str, pattern: str) -> None:
    if digits := find_excessive_repetition(pattern):
        raise make_repetition_error(path, digits)


def find_excessive_repetition(pattern: str) -> str:
    """Return the digits of the first count of repetitions above the limit; empty without one. Counts are compared by
    their first nine digits: `int` raises an error for thousands of digits."""
    if "{" not in pattern:
        return ""
    for match in REPETITION_PATTERN.finditer(pattern):
        for digits in match.groups():
            if digits and int(digits.lstrip("0")[:9] or 0) > MAX_REPETITIONS:
                return str(digits)
    return ""


def make_repetition_error(path: str, digits: str) -> InvalidRequest:
    return InvalidRequest(f"`{path}` must repeat nothing more than {MAX_REPETITIONS} times, got {digits[:40]}")


# Constraints by the fields of vLLM's `structured_outputs`; with `guided_` in front, the first four are fields of their
# own.
STRUCTURED_OUTPUT_READERS: Mapping[str, Callable[[str, object], Grammar]] = {
    "json": make_json_schema_grammar, "regex": make_regex_grammar, "choice": make_choice_grammar,
    "grammar": make_context_free_grammar,
    "json_object": lambda path, _: make_json_schema_grammar(path, ANY_OBJECT_SCHEMA)}


def parse_single_grammar(grammars: Mapping[str, Callable[[str], Grammar | None]]) -> tuple[str, Grammar] | None:
    """Return the parameter that holds a grammar, and the grammar; None if none does. Each parameter has a function that
    reads it. Raises InvalidRequest if several hold one."""
    found = [(parameter, grammar) for parameter, read in grammars.items() if (grammar := read(parameter)) is not None]
    if len(found) > 1:
        raise InvalidRequest(f"`{found[0][0]}` and `{found[1][0]}` are given, but one constrains the output; give one")
    return found[0] if found else None
