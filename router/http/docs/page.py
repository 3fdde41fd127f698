"""The page at /docs, a single file without scripts, and the OpenAPI document; both are generated on first use."""

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from html import escape
from typing import Any

from aiohttp import web

from router.http.docs.catalog import Entry, sections
from router.http.docs.openapi import document
from router.http.transport.body import json_answer

STYLE = ("body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
         "code{background:#8882;padding:0 .2em}table{border-collapse:collapse;width:100%}"
         "td,th{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0;border-bottom:1px solid #8884}"
         "details{margin:.4rem 0 .4rem 1rem}@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}}")
POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
Schemas = Mapping[str, Any]


class Docs:
    def __init__(self, compat: str, dialect: str) -> None:
        self._compat, self._dialect = compat, dialect

    @cached_property
    def _document(self) -> Mapping[str, Any]:
        return document(self._compat, self._dialect)

    @cached_property
    def _page(self) -> str:
        return page(self._document, self._compat, self._dialect)

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/docs", self.docs), web.get("/api-doc/openapi.json", self.openapi)]

    async def docs(self, _: web.Request) -> web.Response:
        return web.Response(text=self._page, content_type="text/html", headers=POLICY)

    async def openapi(self, _: web.Request) -> web.Response:
        return json_answer(self._document)


def page(described: Mapping[str, Any], compat: str = "none", dialect: str = "none") -> str:
    info, schemas = described["info"], described["components"]["schemas"]
    listed = "".join(f"<h2>{escape(title)}</h2>{''.join(entry_html(schemas, entry) for entry in section)}"
                     for title, section in sections(compat, dialect).items())
    return (f"<!doctype html><html lang=en><meta charset=utf-8><title>{info['title']}</title><style>{STYLE}</style>"
            f"<h1>{info['title']} {info['version']}</h1><p>{escape(info['description'])} "
            f'<a href="/api-doc/openapi.json">openapi.json</a></p>{listed}')


def entry_html(schemas: Schemas, entry: Entry) -> str:
    head = f"<p><code>{entry.method} {escape(entry.path)}</code> {escape(entry.summary)}</p>"
    return head + "".join(fields_html(schemas, body.__name__) for body in entry.bodies)


def fields_html(schemas: Schemas, name: str) -> str:
    schema = schemas[name]
    rows = "".join(f"<tr><td><code>{escape(field)}</code><td>{escape(kind)}<td>{escape(default)}"
                   for field, kind, default in rows_of(schema))
    inner = "".join(fields_html(schemas, found) for found in inner_names(schema))
    return (f"<details><summary>{escape(name)}</summary><table><tr><th>field<th>type<th>default{rows}</table>{inner}"
            "</details>")


def rows_of(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    needed = schema.get("required", ())
    for field, about in schema.get("properties", {}).items():
        default = "needed" if field in needed else json.dumps(about["default"]) if "default" in about else ""
        yield field, kind_of(about), default


def kind_of(about: Mapping[str, Any]) -> str:
    if "$ref" in about:
        return str(about["$ref"]).rpartition("/")[2]
    if "anyOf" in about:
        return " or ".join(dict.fromkeys(map(kind_of, about["anyOf"])))
    kind = str(about.get("type", "anything"))
    return f"array of {kind_of(about['items'])}" if kind == "array" and "items" in about else kind


def inner_names(schema: Mapping[str, Any]) -> list[str]:
    """Return the names of the schemas that the fields refer to."""
    kinds = " ".join(kind_of(about) for about in schema.get("properties", {}).values()).split()
    return [kind for kind in dict.fromkeys(kinds) if kind[:1].isupper()]
