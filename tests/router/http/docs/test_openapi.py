"""OpenAPI document: completeness, and agreement with the bodies that routes accept."""

import json
import re

import pytest

from router.http.docs.openapi import document

DOCUMENT = document()


@pytest.mark.parametrize("compat", ["none", "lorax"])
def test_every_reference_leads_somewhere(compat):
    described = document(compat)
    names = {part.partition('"')[0] for part in json.dumps(described).split("#/components/schemas/")[1:]}
    assert names == set(described["components"]["schemas"])


@pytest.mark.parametrize(("compat", "path", "error", "status"), [
    ("none", "/v1/chat/completions", "ApiError", "400"), ("none", "/generate", "Error", "422"),
    ("tgi", "/v1/chat/completions", "Error", "422"), ("lorax", "/v1/chat/completions", "Error", "422")])
def test_an_error_is_described_as_its_route_has_it(compat, path, error, status):
    answers = document(compat)["paths"][path]["post"]["responses"]
    assert answers[status]["content"]["application/json"]["schema"] == {"$ref": f"#/components/schemas/{error}"}
    assert ("422" in answers) == (status == "422")


def test_every_operation_has_a_name_of_its_own():
    operations = [operation for path in DOCUMENT["paths"].values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all(operation["summary"] and "200" in operation["responses"] for operation in operations)


def test_bodies_are_described_as_they_are_taken():
    schemas = DOCUMENT["components"]["schemas"]
    assert schemas["Generate"]["required"] == ["inputs"]
    assert {kind["type"] for kind in schemas["ChatRequest"]["properties"]["stop"]["anyOf"]} == {
        "string", "array", "null"}
    assert {kind["type"] for kind in schemas["Completion"]["properties"]["prompt"]["anyOf"]} == {"string", "array"}


def test_routes_that_stream_say_so():
    content = DOCUMENT["paths"]["/generate_stream"]["post"]["responses"]["200"]["content"]
    assert "text/event-stream" in content


def test_a_route_that_takes_the_bodies_of_others_says_which():
    schema = DOCUMENT["paths"]["/invocations"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert [kind["$ref"].rpartition("/")[2] for kind in schema["anyOf"]] == [
        "CompatGenerate", "ChatRequest", "Completion"]


def test_parts_of_paths_are_described_and_so_is_every_answer():
    for path, operations in DOCUMENT["paths"].items():
        for operation in operations.values():
            described = {parameter["name"] for parameter in operation.get("parameters", ())}
            assert described == set(re.findall(r"\{(\w+)\}", path))
            assert all(answer["description"] for answer in operation["responses"].values())
