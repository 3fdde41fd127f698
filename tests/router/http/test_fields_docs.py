"""The page of all fields of request bodies."""

import re

import pytest

from router.http.docs import BATCHING_STUDY_ROUTES, ROUTE_SECTIONS
from router.http.fields_docs import PAGE, format_type, list_limits, make_page
from router.http.openai.requests import ChatRequest


def test_page_is_fresh():
    assert PAGE.read_text(encoding="utf-8") == make_page(), "call make docs"


def test_page_has_every_route_with_a_body():
    paths = {path for line in re.findall(r"(?m)^`POST` (.*?)\. ", make_page()) for path in re.findall(r"`(.*?)`", line)}
    assert paths == {entry.path for section in (*ROUTE_SECTIONS.values(), BATCHING_STUDY_ROUTES) for entry in section
                     if entry.body_models}


def test_page_has_every_field_and_links_to_every_object():
    page = make_page()
    section = page.partition("### ChatRequest\n")[2].partition("###")[0]
    assert re.findall(r"(?m)^\| `(\w+)`", section) == [*ChatRequest.model_fields]
    assert set(re.findall(r"\]\(#(\w+)\)", page)) <= {
        title.lower() for title in re.findall(r"(?m)^### (\w+)", page)}


@pytest.mark.parametrize(("field", "limits"), [
    ({"type": "integer", "minimum": 0, "exclusiveMaximum": 2**64}, ["at least 0"]),
    ({"anyOf": [{"type": "integer", "minimum": -2**31}, {"type": "null"}], "minimum": -10, "maximum": 10},
     ["-10 to 10"]),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 3.4e38}, ["above 0"]),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, ["above 0", "below 1"]),
    ({"type": "string", "minLength": 1}, ["not empty"]), ({"type": "string", "maxLength": 0}, ["must be empty"]),
    ({"type": "string", "minLength": 1, "maxLength": 1024}, ["1 to 1,024 characters"]),
    ({"type": "array", "maxItems": 9, "items": {}}, ["at most 9 entries"]), ({"type": "null"}, ["must be empty"]),
    ({"enum": ["a", None]}, ["`a`"]), ({"const": "a"}, ["`a`"]), ({"minimum": 1, "maximum": 1}, ["1"]),
    ({"type": "object", "additionalProperties": {"minimum": -1, "maximum": 1}}, ["values -1 to 1"])])
def test_limits_are_named(field, limits):
    assert [limit for limit in list_limits(field) if limit] == limits


@pytest.mark.parametrize(("field", "expected"), [
    ({"$ref": "#/components/schemas/Tool"}, "[Tool](#tool)"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string"),
    ({"type": "array", "items": {"type": "string"}}, "list of string"), ({"type": "null"}, "null"), ({}, "any"),
    ({"anyOf": [{"const": "x"}, {"type": "boolean"}]}, "string or boolean")])
def test_types_are_named(field, expected):
    assert format_type(field) == expected
