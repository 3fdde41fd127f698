"""Generator of docs/reference/http-fields.md, the fields of all request bodies, from their models.

`python -P -m router.http.fields_docs` writes it; `--check` only compares.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from router.http.docs import (
    BATCHING_STUDY_ROUTES,
    LORAX_BODY_MODELS,
    ROUTE_SECTIONS,
    DocumentedRoute,
    build_openapi_document,
    get_route_sections,
    iter_subclasses,
)
from router.http.transport.body import BodyModel, LenientBodyModel

PAGE = Path("docs/reference/http-fields.md")
PAGE_HEADER = """\
<!-- Written by `make docs` from the models of request bodies and router/http/field_descriptions.py; change those. -->
# Fields of requests

This page lists every field of every request body, with its type, its default and its limits. [HTTP API](http.md)
explains routes, errors and streams.

Every field may be left out that is not required. Null means that it is not given. A value of another type or beyond a
limit is refused, and the error names the field. Unknown fields are ignored, and named in the header `x-ignored-fields`.
A field that must be empty is refused if it is not, with the reason under "meaning".
"""
COLUMNS = ("field", "type", "default", "limits", "meaning")
Schema = Mapping[str, Any]


def format_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def format_code(value: object) -> str:
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def list_non_null_schemas(field: Schema) -> list[Schema]:
    """Return the schemas of which a value must fit one, without null."""
    kinds = field.get("anyOf") or field.get("oneOf") or [field]
    return [kind for kind in kinds if kind.get("type") != "null"]


def format_type(field: Schema) -> str:
    if "$ref" in field:
        name = str(field["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    kinds = list_non_null_schemas(field)
    if kinds and kinds != [field]:
        return " or ".join(dict.fromkeys(map(format_type, kinds)))
    if field.get("type") == "array" and "items" in field:
        return f"list of {format_type(field['items'])}"
    if "const" in field or "enum" in field:
        return "string" if isinstance(field.get("const", field.get("enum", [""])[0]), str) else "boolean"
    return str(field.get("type", "any")) if kinds else "null"


def format_range(least: float | None, most: float | None, unit: str = "") -> str:
    if unit and least == 1 and most is None:
        return "not empty"
    if least is None and most is None:
        return ""
    if least is None or most is None:
        return f"at most {most:,}{unit}" if least is None else f"at least {least:,}{unit}"
    return f"{least:,}{unit}" if least == most else f"{least:,} to {most:,}{unit}"


def list_limits(field: Schema) -> Iterator[str]:
    """Yield the limits of a field. Limits of its own count before those of its only kind."""
    kinds = list_non_null_schemas(field)
    for kind in [{**kinds[0], **field}] if len(kinds) == 1 else [field, *kinds]:
        if not kinds or kind.get("type") == "null" or 0 in (kind.get("maxLength"), kind.get("maxItems")):
            yield "must be empty"
            continue
        if "const" in kind:
            yield format_code(kind["const"])
        if "enum" in kind:
            yield ", ".join(format_code(value) for value in kind["enum"] if value is not None)
        if "exclusiveMinimum" in kind:
            yield f"above {kind['exclusiveMinimum']}"
        if "exclusiveMaximum" in kind and not is_integer_type_limit(kind["exclusiveMaximum"]):
            yield f"below {kind['exclusiveMaximum']}"
        least, most = (None if is_integer_type_limit(kind.get(name)) else kind.get(name)
                       for name in ("minimum", "maximum"))
        yield format_range(least, most)
        if isinstance(values := kind.get("additionalProperties"), dict) and "minimum" in values:
            yield f"values {format_range(values['minimum'], values['maximum'])}"
        yield format_range(kind.get("minLength"), kind.get("maxLength"), " characters")
        yield format_range(kind.get("minItems"), kind.get("maxItems"), " entries")


def is_integer_type_limit(bound: float | None) -> bool:
    """Whether a limit is that of 32-bit or 64-bit numbers."""
    return bound is not None and abs(bound) >= 2**31


def format_table(schema: Schema) -> Iterator[str]:
    yield format_row(COLUMNS)
    yield format_row("---" for _ in COLUMNS)
    required = set(schema.get("required", ()))
    for name, field in schema["properties"].items():
        default = field.get("default")
        limits = "; ".join(dict.fromkeys(filter(None, list_limits(field))))
        yield format_row((format_code(name), format_type(field), "required" if name in required else
                          "" if default in (None, "", []) else format_code(default), limits,
                          field.get("description", "")))


def format_notes(model: type[BodyModel]) -> Iterator[str]:
    """Yield which fields that a model does not have are ignored and refused."""
    if not issubclass(model, LenientBodyModel):
        return
    for title, names in (("Ignored", model.unreported_fields),
                         ("Ignored, and named in the answer", model.ignored_fields),
                         ("Refused, unless they change nothing", frozenset(model.refused_fields))):
        if shown := sorted(names - model.model_fields.keys()):
            yield f"\n{title}: {', '.join(map(format_code, shown))}.\n"


def list_referenced_names(schema: Any) -> Iterator[str]:
    """Yield the names of the models that a schema refers to."""
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        if isinstance(value, str) and value.startswith("#/components/schemas/"):
            yield value.rpartition("/")[2]
        yield from list_referenced_names(value)


def format_section(title: str, routes: Sequence[DocumentedRoute], schemas: Mapping[str, Schema],
                   shown: set[str]) -> Iterator[str]:
    """Yield a section: the bodies of its routes, each followed by the objects that no body before it had."""
    models = {model.__name__: model for model in iter_subclasses(BodyModel)}
    paths_by_body: dict[str, list[str]] = {}
    for route in routes:
        for body in route.body_models:
            paths_by_body.setdefault(body.__name__, []).append(route.path)
    if not paths_by_body.keys() - shown:
        return
    yield f"\n## {title}\n"
    for body_name, paths in paths_by_body.items():
        waiting = [body_name]
        while waiting:
            name = waiting.pop(0)
            if name in shown:
                continue
            shown.add(name)
            words = f"`POST` {', '.join(map(format_code, paths))}. " if name == body_name else ""
            yield f"\n### {name}\n\n{words}{' '.join(schemas[name].get('description', '').split())}\n\n"
            yield from format_table(schemas[name])
            yield from format_notes(models[name])
            waiting += list_referenced_names(schemas[name])


def make_page() -> str:
    schemas = build_openapi_document()["components"]["schemas"]
    lorax_schemas = build_openapi_document("lorax", "batching")["components"]["schemas"]
    shown: set[str] = set()
    parts = [PAGE_HEADER]
    for title, routes in ROUTE_SECTIONS.items():
        parts += format_section(title, routes, schemas, shown)
    lorax_routes = [route for route in get_route_sections("lorax")["Generate"] if route.path in LORAX_BODY_MODELS]
    parts += format_section("With --compat lorax", lorax_routes, lorax_schemas, shown)
    parts += format_section("With --dialect batching", BATCHING_STUDY_ROUTES, lorax_schemas, shown)
    return "".join(parts)


def main() -> None:
    page = make_page()
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(page, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        raise SystemExit(f"{PAGE} is not what the models say: call make docs")


if __name__ == "__main__":
    main()
