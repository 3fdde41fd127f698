"""Tests of router/grammars/parameters.py."""

import json
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest

from router.errors import InvalidRequest
from router.grammars.parameters import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_REPETITIONS,
    MAX_SCHEMA_PARTS,
    Grammar,
    make_json_schema_grammar,
    parse_grammar,
)

LOOM_SCHEMA = {"type": "object", "properties": {"loom": {"type": "integer"}}, "required": ["loom"]}
LOOM_GRAMMAR = Grammar("json_schema", json.dumps(LOOM_SCHEMA, separators=(",", ":")))


def read_schema_grammar(schema: object) -> Grammar | None:
    return parse_grammar("grammar", {"type": "json", "value": schema})


def make_nested_schema(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"oneOf": [schema, {"type": "string"}]}
    return schema


@pytest.mark.parametrize("fields", [
    {"type": "json", "value": LOOM_SCHEMA},
    {"type": "json", "value": json.dumps(LOOM_SCHEMA)},
    {"type": "json_object", "value": LOOM_SCHEMA},
    {"type": "json_object", "schema": LOOM_SCHEMA},
    {"type": "json_schema", "value": {"name": "weave", "schema": LOOM_SCHEMA}},
    {"type": "json_schema", "value": json.dumps({"schema": LOOM_SCHEMA})},
    {"type": "json_schema", "json_schema": {"name": "weave", "schema": LOOM_SCHEMA, "strict": True}},
    {"type": "json_schema", "json_schema": {"name": "weave", "schema": json.dumps(LOOM_SCHEMA), "strict": None}},
], ids=str)
def test_every_spelling_of_a_schema_gives_the_same_grammar(fields: dict[str, Any]) -> None:
    assert parse_grammar("response_format", fields) == LOOM_GRAMMAR


def test_json_object_without_a_schema_allows_any_object() -> None:
    assert parse_grammar("response_format", {"type": "json_object"}) == Grammar("json_schema", '{"type":"object"}')


def test_text_format_needs_no_grammar() -> None:
    assert parse_grammar("response_format", {"type": "text"}) is None


def test_regex_is_kept_unchanged() -> None:
    assert parse_grammar("grammar", {"type": "regex", "value": r"\d{3}|Übung"}) == Grammar("regex", r"\d{3}|Übung")


def test_property_order_is_kept_and_changes_the_digest() -> None:
    there = read_schema_grammar({"properties": {"a": {}, "b": {}}})
    back = read_schema_grammar({"properties": {"b": {}, "a": {}}})
    assert there is not None
    assert back is not None
    assert there.digest != back.digest


def test_grammars_of_different_kinds_have_different_digests() -> None:
    assert Grammar("regex", "{}").digest != Grammar("json_schema", "{}").digest


@pytest.mark.parametrize(("fields", "message"), [
    ("json", "`grammar` must be an object with a `type`"),
    ([], "`grammar` must be an object with a `type`"),
    ({}, "`grammar` must be an object with a `type`"),
    ({"type": 1}, "`grammar` must be an object with a `type`"),
    ({"type": "lark", "value": "start: x"}, "`grammar.type` must be one of json, json_object, json_schema, regex or "
     "text, got `lark`"),
    ({"type": "json"}, "`grammar.value` is missing"),
    ({"type": "json", "value": None}, "`grammar.value` is missing"),
    ({"type": "json_schema"}, "`grammar.json_schema` is missing"),
    ({"type": "json_schema", "json_schema": {"name": "x"}}, "`grammar.json_schema` must be an object with a `schema`"),
    ({"type": "json_schema", "value": [1]}, "`grammar.value` must be an object with a `schema`"),
    ({"type": "json", "value": "weft"}, "`grammar.value` is a string that holds no JSON"),
    ({"type": "json", "value": "[" * 5000}, "`grammar.value` is a string that holds no JSON"),
    ({"type": "json", "value": "[1]"}, "`grammar.value` must be a JSON schema"),
    ({"type": "json", "value": True}, "`grammar.value` must be a JSON schema"),
    ({"type": "regex"}, "`grammar.value` must be a regular expression"),
    ({"type": "regex", "value": ""}, "`grammar.value` must be a regular expression"),
    ({"type": "regex", "value": 7}, "`grammar.value` must be a regular expression"),
    ({"type": "regex", "value": "\ud800"}, "`grammar.value` holds half of a surrogate pair"),
    ({"type": "json", "value": {"const": float("inf")}}, "`grammar.value` holds a number that is not finite"),
], ids=str)
def test_invalid_grammar_fields_are_rejected(fields: object, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_grammar("grammar", fields)
    assert str(refused.value).startswith(message)


def test_grammar_that_is_too_long_is_rejected() -> None:
    for fields in ({"type": "regex", "value": "a" * (MAX_CHARACTERS + 1)},
                   {"type": "json", "value": {"description": "a" * MAX_CHARACTERS}},
                   {"type": "json", "value": '{"description":"' + "a" * MAX_CHARACTERS + '"}'}):
        with pytest.raises(InvalidRequest, match=f"at most {MAX_CHARACTERS} characters, got 262"):
            parse_grammar("grammar", fields)


@pytest.mark.parametrize("depth", [MAX_DEPTH // 2, 90, 20_000])
def test_schema_that_is_too_deep_is_rejected(depth: int) -> None:
    with pytest.raises(InvalidRequest, match=f"at most {MAX_DEPTH} levels deep"):
        read_schema_grammar(make_nested_schema(depth))


def test_schema_of_usual_depth_is_accepted() -> None:
    assert read_schema_grammar(make_nested_schema(MAX_DEPTH // 2 - 1)) is not None


def test_schema_of_too_many_parts_is_rejected_however_it_is_sent() -> None:
    """Regression: a schema in a text escapes the limits of bodies, and the path of each of its 85,000 parts was made
    several times, which held up the event loop for more than a second."""
    schema: dict[str, Any] = {"allOf": [{}] * 65_000}
    for _ in range(58):
        schema = {"not": schema}
    for value in (schema, json.dumps(schema)):
        with pytest.raises(InvalidRequest, match=rf"^`grammar\.value` must hold at most {MAX_SCHEMA_PARTS} lists and "
                                                 r"objects, got 65060 or more$"):
            read_schema_grammar(value)


@pytest.mark.parametrize("key", ["anyOf", "enum"])
def test_schema_of_the_most_parts_is_accepted(key: str) -> None:
    assert read_schema_grammar({key: [{}] * (MAX_SCHEMA_PARTS - 2)}) is not None
    with pytest.raises(InvalidRequest, match=f"got {MAX_SCHEMA_PARTS + 1} or more"):
        read_schema_grammar({key: [{}] * (MAX_SCHEMA_PARTS - 1)})


@pytest.mark.parametrize(("pattern", "times"), [
    ("a{0,1000000000}", "1000000000"), ("(a|b){65537}", "65537"), ("x{70000,}", "70000"),
    (r"\\{0,99999}", "99999"), ("a{0," + "9" * 10_000 + "}", "9" * 40)])
def test_excessive_repetition_is_rejected(pattern: str, times: str) -> None:
    for fields in ({"type": "regex", "value": pattern},
                   {"type": "json", "value": {"properties": {"loom": {"pattern": pattern}}}},
                   {"type": "json", "value": {"anyOf": [{"patternProperties": {pattern: {}}}]}}):
        with pytest.raises(InvalidRequest, match=f"more than {MAX_REPETITIONS} times, got {times}$"):
            parse_grammar("grammar", fields)


def test_braces_without_excessive_repetition_are_accepted() -> None:
    for pattern in (r"\{99999\}", "a{3}b{0,65536}", "{x}", "99999", "a{00000000000000000003}"):
        assert parse_grammar("grammar", {"type": "regex", "value": pattern}) is not None


@pytest.mark.parametrize("key", ["x-guidance", "%llguidance", "divisibleBy", "disallow", "extends"])
def test_unsupported_schema_keywords_are_rejected_with_their_path(key: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"`grammar\.value\.properties\.loom\.anyOf\.0\.{key}` is not supported"):
        read_schema_grammar({"properties": {"loom": {"anyOf": [{key: {}}]}}})


def test_property_names_and_values_may_equal_unsupported_keywords() -> None:
    schema = {"properties": {"extends": {"type": "string"}}, "default": {"disallow": 1}, "examples": [{"extends": 2}],
              "enum": [{"x-guidance": 1}], "const": {"divisibleBy": 2}}
    assert read_schema_grammar(schema) is not None


@pytest.mark.parametrize(("schema", "fault"), [
    ({"$ref": "#/$defs/x"}, "`#/$defs/x` at `$ref`"),
    ({"properties": {"a": {"items": {"$ref": "#/$defs/x"}}}, "$defs": {"y": {}}},
     "`#/$defs/x` at `properties.a.items.$ref`"),
    ({"properties": {"a": {"$ref": "#/anyOf/1"}}, "anyOf": [{}]}, "`#/anyOf/1` at `properties.a.$ref`"),
    ({"properties": {"a": {"$ref": "#name"}}}, "`#name` at `properties.a.$ref`"),
    ({"$ref": "http://x.org/y"}, "`http://x.org/y` at `$ref`"),
    ({"$ref": "#/" + "x" * 200}, f"`#/{'x' * 98}` at `$ref`")])
def test_reference_that_leads_nowhere_is_described_with_its_path(schema: Any, fault: str) -> None:
    assert make_json_schema_grammar("response_format.schema", schema).reference_fault == (
        f"the reference {fault} leads to no part of the JSON schema")


@pytest.mark.parametrize("schema", [
    {"$ref": "#"}, {"$ref": ""}, {"properties": {"a": {"$ref": "#/$defs/x~1y%20z"}}, "$defs": {"x/y z": {}}},
    {"properties": {"a": {"$ref": "#/anyOf/0"}}, "anyOf": [{}]}, {"enum": [{"$ref": "#/x"}]},
    {"properties": {"a": {"$ref": "#name"}}, "$defs": {"x": {"$anchor": "name"}}},
    {"properties": {"a": {"$ref": "y"}}, "$defs": {"x": {"$id": "y"}}}, {"properties": {"$ref": {"type": "string"}}},
    {"$ref": 5}])
def test_other_references_are_left_to_the_compiler(schema: Any) -> None:
    assert not make_json_schema_grammar("schema", schema).reference_fault


@pytest.mark.parametrize("num_schemas", [4_000, 100_000])
def test_long_names_around_many_schemas_take_little_memory(num_schemas: int) -> None:
    """Regression: each schema's path was kept as text, which took half a gigabyte for half a megabyte."""
    schema = {"properties": {"x" * 130_000: {"anyOf": [{}] * num_schemas}}}
    tracemalloc.start()
    try:
        with suppress(InvalidRequest):  # the larger one is too long
            make_json_schema_grammar("response_format", schema)
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()
