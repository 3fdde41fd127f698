"""The page at /docs, a single file without scripts, and the OpenAPI document; both are generated on first use."""

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from html import escape
from typing import Any

from aiohttp import web

from router.http.docs.openapi import build_openapi_document
from router.http.docs.route_catalog import DocumentedRoute, get_route_sections
from router.http.transport.body import json_response

PAGE_CSS = ("body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
            "code{background:#8882;padding:0 .2em}table{border-collapse:collapse;width:100%}"
            "td,th{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0;border-bottom:1px solid #8884}"
            "details{margin:.4rem 0 .4rem 1rem}@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}}")
CONTENT_SECURITY_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
Schemas = Mapping[str, Any]


class DocsRoutes:
    """Handlers of `/docs` and `/api-doc/openapi.json`. Both documents are generated on first use."""

    def __init__(self, compat: str, dialect: str) -> None:
        self._compat, self._dialect = compat, dialect

    @cached_property
    def _openapi_document(self) -> Mapping[str, Any]:
        return build_openapi_document(self._compat, self._dialect)

    @cached_property
    def _docs_page(self) -> str:
        return render_docs_page(self._openapi_document, self._compat, self._dialect)

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/docs", self.get_docs_page), web.get("/api-doc/openapi.json", self.get_openapi_document)]

    async def get_docs_page(self, _: web.Request) -> web.Response:
        return web.Response(text=self._docs_page, content_type="text/html", headers=CONTENT_SECURITY_HEADERS)

    async def get_openapi_document(self, _: web.Request) -> web.Response:
        return json_response(self._openapi_document)


def render_docs_page(openapi_document: Mapping[str, Any], compat: str = "none", dialect: str = "none") -> str:
    info, schemas = openapi_document["info"], openapi_document["components"]["schemas"]
    sections_html = "".join(f"<h2>{escape(title)}</h2>{''.join(route_html(schemas, entry) for entry in section)}"
                            for title, section in get_route_sections(compat, dialect).items())
    return (f"<!doctype html><html lang=en><meta charset=utf-8><title>{info['title']}</title><style>{PAGE_CSS}</style>"
            f"<h1>{info['title']} {info['version']}</h1><p>{escape(info['description'])} "
            f'<a href="/api-doc/openapi.json">openapi.json</a></p>{sections_html}')


def route_html(schemas: Schemas, route: DocumentedRoute) -> str:
    heading = f"<p><code>{route.method} {escape(route.path)}</code> {escape(route.summary)}</p>"
    return heading + "".join(schema_html(schemas, body.__name__) for body in route.body_models)


def schema_html(schemas: Schemas, name: str) -> str:
    schema = schemas[name]
    rows = "".join(f"<tr><td><code>{escape(field)}</code><td>{escape(kind)}<td>{escape(default)}"
                   for field, kind, default in field_rows(schema))
    referenced_html = "".join(schema_html(schemas, found) for found in referenced_schema_names(schema))
    return (f"<details><summary>{escape(name)}</summary><table><tr><th>field<th>type<th>default{rows}</table>"
            f"{referenced_html}</details>")


def field_rows(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    required_fields = schema.get("required", ())
    for field, field_schema in schema.get("properties", {}).items():
        default = ("needed" if field in required_fields
                   else json.dumps(field_schema["default"]) if "default" in field_schema else "")
        yield field, field_type(field_schema), default


def field_type(field_schema: Mapping[str, Any]) -> str:
    if "$ref" in field_schema:
        return str(field_schema["$ref"]).rpartition("/")[2]
    if "anyOf" in field_schema:
        return " or ".join(dict.fromkeys(map(field_type, field_schema["anyOf"])))
    type_name = str(field_schema.get("type", "anything"))
    return (f"array of {field_type(field_schema['items'])}" if type_name == "array" and "items" in field_schema
            else type_name)


def referenced_schema_names(schema: Mapping[str, Any]) -> list[str]:
    """Return the names of the schemas that the fields refer to."""
    type_names = " ".join(field_type(about) for about in schema.get("properties", {}).values()).split()
    return [kind for kind in dict.fromkeys(type_names) if kind[:1].isupper()]
