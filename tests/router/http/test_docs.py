"""Catalog of routes, OpenAPI document (its agreement with the bodies that routes accept) and the page at /docs."""

import asyncio
import json
import re
import threading
from html.parser import HTMLParser
from unittest.mock import Mock

import pytest
from pydantic import ValidationError

from router.config import RouterConfig
from router.http.docs import (
    ROUTE_SECTIONS,
    build_openapi_document,
    get_route_sections,
    iter_subclasses,
    render_docs_page,
)
from router.http.docs_examples import EXAMPLE_BODIES
from router.http.transport.auth import PUBLIC_PATH_PREFIXES, PUBLIC_PATHS
from router.http.transport.body import BodyModel, LenientBodyModel
from router.validation.bounds import OpenApiBounds

ROUTES_BY_METHOD_AND_PATH = {(entry.method, entry.path): entry for section in ROUTE_SECTIONS.values()
                             for entry in section}
OPENAPI_DOCUMENT = build_openapi_document()


def get_served_routes(client):
    routes = client.app.router.routes()
    return {(route.method, route.resource.canonical) for route in routes if route.method != "HEAD"}


@pytest.mark.parametrize("dialect", ["none", "batching"])
@pytest.mark.parametrize("compat", ["none", "tgi", "lorax"])
def test_catalog_lists_exactly_the_served_routes(serve, compat, dialect):
    async def scenario(client, _):
        assert get_served_routes(client) == {
            (entry.method, entry.path) for section in get_route_sections(compat, dialect).values() for entry in section}
    serve(scenario, config=RouterConfig(compat=compat, dialect=dialect))


def test_body_models_depend_on_the_dialect():
    [entry] = [entry for entry in get_route_sections("lorax")["Generate"] if entry.path == "/generate"]
    assert [body.__name__ for body in entry.body_models] == ["LoraxGenerateRequest"]
    assert ROUTES_BY_METHOD_AND_PATH["POST", "/generate"].body_models != entry.body_models


def is_public(path):
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_PATH_PREFIXES)


def test_get_routes_that_require_a_key_are_those_about_requests_and_adapters():
    """A new route needs a key unless its path is added to PUBLIC_PATHS."""
    protected_routes = {(method, path) for method, path in ROUTES_BY_METHOD_AND_PATH
                        if method != "GET" or not is_public(path)}
    assert ({path for method, path in protected_routes if method == "GET"}
            == {"/tokenizer_info", "/version", "/v1/requests", "/v1/requests/{id}/explain", "/v1/adapters",
                "/v1/engine/state", "/v1/engine/events", "/v1/engine/trace", "/v1/engine/settings"})
    assert {path for _, path in ROUTES_BY_METHOD_AND_PATH} >= PUBLIC_PATHS


def test_every_protected_route_requires_a_key(serve):
    async def scenario(client, engine):
        for method, path in get_served_routes(client):
            answer = await client.request(method, path.replace("{id}", "x"), json={"inputs": "x"})
            is_open = method == "GET" and is_public(path)
            assert (answer.status == 401) != is_open, (method, path)
        assert not engine.requests
    serve(scenario, config=RouterConfig(api_key="sk-one"))


@pytest.mark.parametrize("compat", ["none", "lorax"])
def test_schema_references_match_the_defined_schemas(compat):
    described = build_openapi_document(compat)
    names = {part.partition('"')[0] for part in json.dumps(described).split("#/components/schemas/")[1:]}
    assert names == set(described["components"]["schemas"])


@pytest.mark.parametrize(("compat", "path", "error", "status"), [
    ("none", "/v1/chat/completions", "ApiError", "400"), ("none", "/generate", "Error", "422"),
    ("none", "/v1/messages", "AnthropicError", "400"), ("lorax", "/v1/messages", "AnthropicError", "400"),
    ("none", "/api/chat", "OllamaError", "400"), ("lorax", "/api/chat", "OllamaError", "400"),
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


@pytest.mark.parametrize(("path", "media_type"), [
    ("/generate_stream", "text/event-stream"), ("/api/chat", "application/x-ndjson")])
def test_streaming_routes_document_the_type_of_the_stream(path, media_type):
    assert media_type in OPENAPI_DOCUMENT["paths"][path]["post"]["responses"]["200"]["content"]


def test_route_with_several_body_types_lists_all_of_them():
    schema = OPENAPI_DOCUMENT["paths"]["/invocations"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert [kind["$ref"].rpartition("/")[2] for kind in schema["anyOf"]] == [
        "CompatGenerateRequest", "ChatRequest", "CompletionRequest"]


def test_path_parameters_and_responses_are_described():
    for path, operations in OPENAPI_DOCUMENT["paths"].items():
        for operation in operations.values():
            parameters = operation.get("parameters", ())
            assert ({parameter["name"] for parameter in parameters if parameter["in"] == "path"}
                    == set(re.findall(r"\{(\w+)\}", path)))
            assert all(parameter["description"] for parameter in parameters if parameter["in"] == "query")
            assert all(answer["description"] for answer in operation["responses"].values())


def test_bounds_of_fields_appear_in_their_schemas():
    schemas = build_openapi_document("lorax")["components"]["schemas"] | OPENAPI_DOCUMENT["components"]["schemas"]
    bounded = [(schemas[model.__name__]["properties"][name], bounds.keywords)
               for model in iter_subclasses(BodyModel) if model.__name__ in schemas
               for name, field in model.model_fields.items() for bounds in field.metadata
               if isinstance(bounds, OpenApiBounds)]
    assert len(bounded) > 50
    for schema, keywords in bounded:
        assert keywords.items() <= schema.items()


def test_same_field_name_has_dialect_specific_bounds():
    schemas = OPENAPI_DOCUMENT["components"]["schemas"]
    assert schemas["GenerateParameters"]["properties"]["temperature"]["exclusiveMinimum"] == 0
    assert schemas["ChatRequest"]["properties"]["temperature"]["minimum"] == 0


class HtmlTextCollector(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text, self.scripts, self.forms = set(), "", [], []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "script":
            self.scripts.append(dict(attrs))
        if tag == "form":
            self.forms.append((dict(attrs)["data-method"], dict(attrs)["data-path"]))
        assert all(not (value or "").startswith(("http:", "https:", "//")) for _, value in attrs)

    def handle_data(self, data):
        self.text += data


def test_docs_page_describes_the_configured_dialect(serve):
    async def scenario(client, _):
        page, document = await client.get("/docs"), await client.get("/api-doc/openapi.json")
        assert "return_k_alternatives" in await page.text()
        assert "LoraxParameters" in (await document.json())["components"]["schemas"]
    serve(scenario, config=RouterConfig(compat="lorax"))


def test_docs_page_lists_every_route_and_loads_no_external_resources():
    described, reader = build_openapi_document(), HtmlTextCollector()
    reader.feed(render_docs_page(described))
    assert not reader.tags & {"link", "img", "iframe"}
    assert reader.scripts == [{"src": "docs/try-it.js"}]
    for path in described["paths"]:
        assert path in reader.text
    for field in ("max_new_tokens", "return_full_text", "max_completion_tokens", "suffix", "instances"):
        assert field in reader.text


def test_docs_page_and_openapi_document_are_served(serve):
    async def scenario(client, _):
        page, document = await client.get("/docs"), await client.get("/api-doc/openapi.json")
        assert (page.status, page.content_type) == (200, "text/html")
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        assert (await document.json())["openapi"].startswith("3.1")
        assert await (await client.get("/openapi.json")).json() == await document.json()
    serve(scenario)


def test_docs_are_rendered_once_off_the_event_loop(serve, monkeypatch):
    """Regression: every GET of the document, which needs no key, wrote its JSON anew."""
    threads = []

    def record_thread(*arguments):
        threads.append(threading.current_thread())
        return build_openapi_document(*arguments)
    monkeypatch.setattr("router.http.docs.build_openapi_document", record_thread)
    monkeypatch.setattr("router.http.docs.json", json_module := Mock(wraps=json))

    async def scenario(client, _):
        await asyncio.gather(*(client.get(path) for path in ("/docs", "/openapi.json", "/api-doc/openapi.json") * 3))
        assert len(threads) == 1
        num_dumps = json_module.dumps.call_count
        assert (await client.get("/openapi.json")).status == 200
        assert json_module.dumps.call_count == num_dumps
    serve(scenario)
    assert threads[0] is not threading.main_thread()


def test_docs_page_has_a_form_for_every_route_and_its_script_is_served(serve):
    async def scenario(client, _):
        reader, page, script = HtmlTextCollector(), await client.get("/docs"), await client.get("/docs/try-it.js")
        reader.feed(await page.text())
        assert sorted(reader.forms) == sorted(ROUTES_BY_METHOD_AND_PATH)
        assert (script.status, script.content_type) == (200, "text/javascript")
        assert "script-src 'self'; connect-src 'self'" in page.headers["Content-Security-Policy"]
    serve(scenario, config=RouterConfig(api_key="sk-one"))  # the page itself asks for no key


@pytest.mark.parametrize(("compat", "dialect"), [("none", "none"), ("tgi", "none"), ("lorax", "none"),
                                                 ("none", "batching")])
def test_every_route_with_a_body_has_an_example_that_one_of_its_bodies_takes(compat, dialect):
    document = build_openapi_document(compat, dialect)
    for section in get_route_sections(compat, dialect).values():
        for entry in section:
            if entry.body_models:
                content = document["paths"][entry.path][entry.method.lower()]["requestBody"]["content"]
                example = json.dumps(content["application/json"]["example"])
                assert any(is_valid(body, example) for body in entry.body_models), entry.path


def is_valid(body, example):
    try:
        parsed = body.model_validate_json(example)
    except ValidationError:
        return False
    return not (isinstance(parsed, LenientBodyModel) and any(parsed.find_unknown_fields()))


def test_examples_can_be_sent(serve):
    """The model of this server generates text: routes of embeddings and adapters refuse their examples."""
    refused = {"/embed", "/v1/embeddings", "/classify", "/classify_batch", "/api/embed", "/api/embeddings"}

    async def scenario(client, _):
        for (method, path), entry in ROUTES_BY_METHOD_AND_PATH.items():
            if not entry.body_models or "adapter" in path or "rank" in path or "score" in path or path in refused:
                continue
            answer = await client.request(method, path, json=EXAMPLE_BODIES[path])
            assert answer.status == 200, (path, await answer.text())
    serve(scenario)
