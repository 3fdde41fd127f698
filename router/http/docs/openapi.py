"""OpenAPI document of the routes, generated from route_catalog.py and the pydantic models of the bodies."""

from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Any

from pydantic.json_schema import models_json_schema

from router.http.docs.route_catalog import DocumentedRoute, get_route_sections
from router.http.transport.body import RequestBody
from router.http.transport.errors import has_openai_error_format
from router.validation.bounds import FieldBounds

SCHEMA_REFERENCE = "#/components/schemas/{model}"
LICENSE = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
TGI_ERROR_SCHEMA = {"type": "object", "required": ["error", "error_type"],
                    "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}}}
OPENAI_ERROR_SCHEMA = {"type": "object", "required": ["error"], "properties": {"error": {
    "type": "object", "required": ["message", "type", "param", "code"], "properties": {
        "message": {"type": "string"}, "type": {"type": "string"}, "param": {"type": ["string", "null"]},
        "code": {"type": ["string", "null"]}}}}}
ERROR_DESCRIPTIONS = {
    "400": "The body is no JSON.",
    "401": "A key is needed.",
    "403": "An admin key is needed.",
    "404": "There is nothing of this name.",
    "408": "Its time ran out before it had a token.",
    "409": "It stays as it is.",
    "413": "The body is too long.",
    "415": "The body is not sent as JSON, or in an encoding that is not taken.",
    "422": "Something in it is not as it must be.",
    "424": "It failed while it was generated.",
    "429": "There is no room for it now.",
    "500": "It failed while it was read as a whole, or by a fault of the server.",
    "503": "No shards are ready.",
}

COMMON_ERROR_STATUSES = ERROR_DESCRIPTIONS.keys() - {"403", "404", "409"}  # statuses of every route with a body
OPENAI_ERROR_DESCRIPTIONS = ERROR_DESCRIPTIONS | {
    "400": "Something in the body is not as it must be.",
    "424": "The adapter cannot be fetched, or is not sound.",
    "500": "It failed while it was computed, or by a fault of the server.",
}


def build_openapi_document(compat: str = "none", dialect: str = "none") -> dict[str, Any]:
    sections = get_route_sections(compat, dialect)
    routes = [entry for section in sections.values() for entry in section]
    body_models = list(dict.fromkeys(body for entry in routes for body in entry.body_models))
    _, schemas = models_json_schema([(body, "validation") for body in body_models], ref_template=SCHEMA_REFERENCE)
    for model in iter_subclasses(RequestBody):
        add_field_bounds(model, schemas["$defs"].get(model.__name__, {}).get("properties", {}))
    paths: dict[str, dict[str, Any]] = {}
    for title, section in sections.items():
        for entry in section:
            paths.setdefault(entry.path, {})[entry.method.lower()] = build_operation(entry, title, compat)
    return {
        "openapi": "3.1.0",
        "info": {"title": "weft", "version": version("weft"), "license": LICENSE,
                 "description": "Serves large language models, as text-generation-inference does."},
        "paths": paths,
        "components": {"schemas": {**schemas["$defs"], **get_error_schemas(routes, compat)},
                       "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


def iter_subclasses(body_model: type[RequestBody]) -> Iterator[type[RequestBody]]:
    for subclass in body_model.__subclasses__():
        yield subclass
        yield from iter_subclasses(subclass)


def add_field_bounds(model: type[RequestBody], properties: dict[str, Any]) -> None:
    """Add the ranges (`FieldBounds`) of the model's fields to the properties of its JSON schema."""
    for name in model.model_fields.keys() & properties.keys():
        for bounds in model.model_fields[name].metadata:
            if isinstance(bounds, FieldBounds):
                properties[name].update(bounds.keywords)


def get_error_schemas(routes: Iterable[DocumentedRoute], compat: str) -> dict[str, Any]:
    """Return the schemas of the error formats that the routes use."""
    openai_schema = ({"ApiError": OPENAI_ERROR_SCHEMA}
                     if any(has_openai_error_format(entry.path, compat) for entry in routes) else {})
    return {"Error": TGI_ERROR_SCHEMA, **openai_schema}


def build_operation(route: DocumentedRoute, title: str, compat: str) -> dict[str, Any]:
    operation_object: dict[str, Any] = {
        "summary": route.summary, "tags": [title], "operationId": make_operation_id(route),
        "responses": build_responses(route, compat)}
    if route.body_models:
        schema_references = [{"$ref": SCHEMA_REFERENCE.format(model=body.__name__)} for body in route.body_models]
        schema: dict[str, Any] = schema_references[0] if len(schema_references) == 1 else {"anyOf": schema_references}
        operation_object["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if "{id}" in route.path:
        operation_object["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation_object


def make_operation_id(route: DocumentedRoute) -> str:
    words = "".join(letter if letter.isalnum() else " " for letter in route.path).split()
    return "_".join([route.method.lower(), *words])


def build_responses(route: DocumentedRoute, compat: str) -> dict[str, Any]:
    media_types = ([route.response_media_type] * bool(route.response_media_type)
                   + ["text/event-stream"] * route.can_stream)
    success: dict[str, Any] = {"description": "As asked."}
    if media_types:
        success["content"] = {kind: {} for kind in media_types}
    error_statuses = (set(COMMON_ERROR_STATUSES if route.body_models else ("401", "503"))
                      | set(route.extra_error_statuses))
    if "{id}" in route.path:
        error_statuses.add("404")
    if not has_openai_error_format(route.path, compat):
        return {"200": success,
                **{code: build_error_response(ERROR_DESCRIPTIONS[code], "Error") for code in sorted(error_statuses)}}
    if "422" in error_statuses:
        error_statuses = error_statuses - {"422"} | {"400"}
    return {"200": success, **{code: build_error_response(OPENAI_ERROR_DESCRIPTIONS[code], "ApiError")
                               for code in sorted(error_statuses)}}


def build_error_response(description: str, schema_name: str) -> dict[str, Any]:
    return {"description": description,
            "content": {"application/json": {"schema": {"$ref": SCHEMA_REFERENCE.format(model=schema_name)}}}}
