"""OpenAPI document: completeness, and agreement with the bodies that routes accept."""

import json
import re

import pytest

from router.http.docs.openapi import build_openapi_document, iter_subclasses
from router.http.transport.body import RequestBody
from router.validation.bounds import FieldBounds

OPENAPI_DOCUMENT = build_openapi_document()


@pytest.mark.parametrize("compat", ["none", "lorax"])
def test_schema_references_match_the_defined_schemas(compat):
    described = build_openapi_document(compat)
    names = {part.partition('"')[0] for part in json.dumps(described).split("#/components/schemas/")[1:]}
    assert names == set(described["components"]["schemas"])


@pytest.mark.parametrize(("compat", "path", "error", "status"), [
    ("none", "/v1/chat/completions", "ApiError", "400"), ("none", "/generate", "Error", "422"),
    ("tgi", "/v1/chat/completions", "Error", "422"), ("lorax", "/v1/chat/completions", "Error", "422")])
def test_error_schema_matches_the_route(compat, path, error, status):
    answers = build_openapi_document(compat)["paths"][path]["post"]["responses"]
    assert answers[status]["content"]["application/json"]["schema"] == {"$ref": f"#/components/schemas/{error}"}
    assert ("422" in answers) == (status == "422")


def test_operation_ids_are_unique():
    operations = [operation for path in OPENAPI_DOCUMENT["paths"].values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all(operation["summary"] and "200" in operation["responses"] for operation in operations)


def test_body_schemas_match_the_accepted_types():
    schemas = OPENAPI_DOCUMENT["components"]["schemas"]
    assert schemas["GenerateRequest"]["required"] == ["inputs"]
    assert {kind["type"] for kind in schemas["ChatRequest"]["properties"]["stop"]["anyOf"]} == {
        "string", "array", "null"}
    assert {kind["type"]
            for kind in schemas["CompletionRequest"]["properties"]["prompt"]["anyOf"]} == {"string", "array"}


@pytest.mark.parametrize("name", ["ChatRequest", "CompletionRequest"])
def test_optional_fields_of_openai_requests_are_nullable(name):
    schemas = OPENAPI_DOCUMENT["components"]["schemas"]
    fields = {field: schema for field, schema in schemas[name]["properties"].items()
              if field not in schemas[name]["required"]} | schemas["StreamOptions"]["properties"]
    assert {"priority", "include_usage"} <= fields.keys()
    assert [field for field, schema in fields.items() if {"type": "null"} not in schema.get("anyOf", ())] == []


def test_streaming_routes_document_event_streams():
    content = OPENAPI_DOCUMENT["paths"]["/generate_stream"]["post"]["responses"]["200"]["content"]
    assert "text/event-stream" in content


def test_route_with_several_body_types_lists_all_of_them():
    schema = OPENAPI_DOCUMENT["paths"]["/invocations"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert [kind["$ref"].rpartition("/")[2] for kind in schema["anyOf"]] == [
        "CompatGenerateRequest", "ChatRequest", "CompletionRequest"]


def test_path_parameters_and_responses_are_described():
    for path, operations in OPENAPI_DOCUMENT["paths"].items():
        for operation in operations.values():
            described = {parameter["name"] for parameter in operation.get("parameters", ())}
            assert described == set(re.findall(r"\{(\w+)\}", path))
            assert all(answer["description"] for answer in operation["responses"].values())


def test_bounds_of_fields_appear_in_their_schemas():
    schemas = build_openapi_document("lorax")["components"]["schemas"] | OPENAPI_DOCUMENT["components"]["schemas"]
    bounded = [(schemas[model.__name__]["properties"][name], bounds.keywords)
               for model in iter_subclasses(RequestBody) if model.__name__ in schemas
               for name, field in model.model_fields.items() for bounds in field.metadata
               if isinstance(bounds, FieldBounds)]
    assert len(bounded) > 50
    for schema, keywords in bounded:
        assert keywords.items() <= schema.items()


def test_same_field_name_has_dialect_specific_bounds():
    schemas = OPENAPI_DOCUMENT["components"]["schemas"]
    assert schemas["GenerateParameters"]["properties"]["temperature"]["exclusiveMinimum"] == 0
    assert schemas["ChatRequest"]["properties"]["temperature"]["minimum"] == 0
