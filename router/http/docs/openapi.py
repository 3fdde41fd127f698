"""OpenAPI document of the routes, generated from catalog.py and the pydantic models of the bodies."""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from pydantic.json_schema import models_json_schema

from router.http.docs.catalog import Entry, sections
from router.http.docs.ranges import add_ranges
from router.http.openai.errors import has_api_errors

REFERENCE = "#/components/schemas/{model}"
LICENSE = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
ERROR = {"type": "object", "required": ["error", "error_type"],
         "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}}}
API_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {
    "type": "object", "required": ["message", "type", "param", "code"], "properties": {
        "message": {"type": "string"}, "type": {"type": "string"}, "param": {"type": ["string", "null"]},
        "code": {"type": ["string", "null"]}}}}}
REFUSALS = {
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

USUAL = REFUSALS.keys() - {"403", "404", "409"}  # statuses of every route with a body
API_REFUSALS = REFUSALS | {
    "400": "Something in the body is not as it must be.",
    "424": "The adapter cannot be fetched, or is not sound.",
    "500": "It failed while it was computed, or by a fault of the server.",
}


def document(compat: str = "none", dialect: str = "none") -> dict[str, Any]:
    listed = sections(compat, dialect)
    entries = [entry for section in listed.values() for entry in section]
    bodies = list(dict.fromkeys(body for entry in entries for body in entry.bodies))
    _, schemas = models_json_schema([(body, "validation") for body in bodies], ref_template=REFERENCE)
    add_ranges(schemas["$defs"])
    paths: dict[str, dict[str, Any]] = {}
    for title, section in listed.items():
        for entry in section:
            paths.setdefault(entry.path, {})[entry.method.lower()] = operation(entry, title, compat)
    return {
        "openapi": "3.1.0",
        "info": {"title": "weft", "version": version("weft"), "license": LICENSE,
                 "description": "Serves large language models, as text-generation-inference does."},
        "paths": paths,
        "components": {"schemas": {**schemas["$defs"], **errors(entries, compat)},
                       "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


def errors(entries: Iterable[Entry], compat: str) -> dict[str, Any]:
    """Return the schemas of the error formats that the routes use."""
    some = {"ApiError": API_ERROR} if any(has_api_errors(entry.path, compat) for entry in entries) else {}
    return {"Error": ERROR, **some}


def operation(entry: Entry, title: str, compat: str) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": entry.summary, "tags": [title], "operationId": operation_id(entry),
        "responses": answers(entry, compat)}
    if entry.bodies:
        kinds = [{"$ref": REFERENCE.format(model=body.__name__)} for body in entry.bodies]
        schema: dict[str, Any] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if "{id}" in entry.path:
        described["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    return described


def operation_id(entry: Entry) -> str:
    words = "".join(letter if letter.isalnum() else " " for letter in entry.path).split()
    return "_".join([entry.method.lower(), *words])


def answers(entry: Entry, compat: str) -> dict[str, Any]:
    kinds = [entry.answer] * bool(entry.answer) + ["text/event-stream"] * entry.streams
    good: dict[str, Any] = {"description": "As asked."}
    if kinds:
        good["content"] = {kind: {} for kind in kinds}
    bad = set(USUAL if entry.bodies else ("401", "503")) | set(entry.refusals)
    if "{id}" in entry.path:
        bad.add("404")
    if not has_api_errors(entry.path, compat):
        return {"200": good, **{code: refusal(REFUSALS[code], "Error") for code in sorted(bad)}}
    if "422" in bad:
        bad = bad - {"422"} | {"400"}
    return {"200": good, **{code: refusal(API_REFUSALS[code], "ApiError") for code in sorted(bad)}}


def refusal(text: str, model: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": {"$ref": REFERENCE.format(model=model)}}}}
