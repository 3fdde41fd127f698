"""Tests of router/grammars/schema.py."""

import json
from typing import Any

import pytest

from router.errors import InvalidRequest
from router.grammars.schema import MOST_CHARACTERS, MOST_DEPTH, MOST_REPETITIONS, Grammar, read_grammar

SCHEMA = {"type": "object", "properties": {"loom": {"type": "integer"}}, "required": ["loom"]}
SAME = Grammar("json_schema", json.dumps(SCHEMA, separators=(",", ":")))


def of_schema(schema: object) -> Grammar | None:
    return read_grammar("grammar", {"type": "json", "value": schema})


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"oneOf": [schema, {"type": "string"}]}
    return schema


@pytest.mark.parametrize("given", [
    {"type": "json", "value": SCHEMA},
    {"type": "json", "value": json.dumps(SCHEMA)},
    {"type": "json_object", "value": SCHEMA},
    {"type": "json_object", "schema": SCHEMA},
    {"type": "json_schema", "value": {"name": "weave", "schema": SCHEMA}},
    {"type": "json_schema", "value": json.dumps({"schema": SCHEMA})},
    {"type": "json_schema", "json_schema": {"name": "weave", "schema": SCHEMA, "strict": True}},
    {"type": "json_schema", "json_schema": {"name": "weave", "schema": json.dumps(SCHEMA), "strict": None}},
], ids=str)
def test_every_spelling_of_a_schema_means_the_same(given: dict[str, Any]) -> None:
    assert read_grammar("response_format", given) == SAME


def test_a_bare_json_object_is_any_object() -> None:
    assert read_grammar("response_format", {"type": "json_object"}) == Grammar("json_schema", '{"type":"object"}')


def test_text_is_no_grammar() -> None:
    assert read_grammar("response_format", {"type": "text"}) is None


def test_a_regular_expression_stays_as_it_is() -> None:
    assert read_grammar("grammar", {"type": "regex", "value": r"\d{3}|Übung"}) == Grammar("regex", r"\d{3}|Übung")


def test_the_order_of_properties_is_kept_and_counts() -> None:
    there = of_schema({"properties": {"a": {}, "b": {}}})
    back = of_schema({"properties": {"b": {}, "a": {}}})
    assert there is not None
    assert back is not None
    assert there.digest != back.digest


def test_kind_and_source_are_told_apart() -> None:
    assert Grammar("regex", "{}").digest != Grammar("json_schema", "{}").digest


@pytest.mark.parametrize(("given", "told"), [
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
def test_what_makes_no_sense_is_told(given: object, told: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_grammar("grammar", given)
    assert str(refused.value).startswith(told)


def test_a_long_grammar_is_refused() -> None:
    for given in ({"type": "regex", "value": "a" * (MOST_CHARACTERS + 1)},
                  {"type": "json", "value": {"description": "a" * MOST_CHARACTERS}},
                  {"type": "json", "value": '{"description":"' + "a" * MOST_CHARACTERS + '"}'}):
        with pytest.raises(InvalidRequest, match=f"at most {MOST_CHARACTERS} characters, got 262"):
            read_grammar("grammar", given)


@pytest.mark.parametrize("depth", [MOST_DEPTH // 2, 90, 20_000])
def test_a_deep_schema_is_refused(depth: int) -> None:
    with pytest.raises(InvalidRequest, match=f"at most {MOST_DEPTH} levels deep"):
        of_schema(nested(depth))


def test_a_schema_as_deep_as_people_write_them_is_taken() -> None:
    assert of_schema(nested(MOST_DEPTH // 2 - 1)) is not None


@pytest.mark.parametrize(("pattern", "times"), [
    ("a{0,1000000000}", "1000000000"), ("(a|b){65537}", "65537"), ("x{70000,}", "70000"),
    (r"\\{0,99999}", "99999"), ("a{0," + "9" * 10_000 + "}", "9" * 40)])
def test_endless_repetition_is_refused(pattern: str, times: str) -> None:
    for given in ({"type": "regex", "value": pattern},
                  {"type": "json", "value": {"properties": {"loom": {"pattern": pattern}}}},
                  {"type": "json", "value": {"anyOf": [{"patternProperties": {pattern: {}}}]}}):
        with pytest.raises(InvalidRequest, match=f"more than {MOST_REPETITIONS} times, got {times}$"):
            read_grammar("grammar", given)


def test_braces_that_repeat_nothing_are_left_alone() -> None:
    for pattern in (r"\{99999\}", "a{3}b{0,65536}", "{x}", "99999", "a{00000000000000000003}"):
        assert read_grammar("grammar", {"type": "regex", "value": pattern}) is not None


@pytest.mark.parametrize("key", ["x-guidance", "%llguidance", "divisibleBy", "disallow", "extends"])
def test_what_would_be_ignored_is_refused_with_its_place(key: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"`grammar\.value\.properties\.loom\.anyOf\.0\.{key}` is not supported"):
        of_schema({"properties": {"loom": {"anyOf": [{key: {}}]}}})


def test_a_property_may_have_any_name_and_a_value_any_content() -> None:
    schema = {"properties": {"extends": {"type": "string"}}, "default": {"disallow": 1}, "examples": [{"extends": 2}],
              "enum": [{"x-guidance": 1}], "const": {"divisibleBy": 2}}
    assert of_schema(schema) is not None
