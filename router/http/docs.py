"""Catalog of all routes as data, and the OpenAPI document and the page at /docs that are generated from it and from the
models of the bodies. A test compares the catalog with the routes of the application. On the page each route has a form
that sends a request (`docs_try_it.js`)."""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aiohttp import web
from pydantic.json_schema import models_json_schema

from router.http.anthropic.requests import AnthropicCountTokensRequest, AnthropicMessagesRequest
from router.http.docs_examples import EXAMPLE_BODIES
from router.http.field_descriptions import describe_field
from router.http.lorax.routes import (
    LoraxChatRequest,
    LoraxCompatGenerateRequest,
    LoraxCompletionRequest,
    LoraxGenerateRequest,
    LoraxTokenizeRequest,
)
from router.http.ollama.model_routes import REFUSED_ROUTES
from router.http.ollama.requests import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from router.http.openai.completions import CompletionRequest
from router.http.openai.requests import ChatRequest
from router.http.openai.responses import ResponsesRequest
from router.http.routes.adapters import LoadAdapterRequest, LoadLoraAdapterRequest, UnloadLoraAdapterRequest
from router.http.routes.batching_study_compat import StudyInferenceRequest
from router.http.routes.clouds import VertexRequest
from router.http.routes.engine_inspection import SimulateRequest
from router.http.routes.pooling import ClassifyBatchRequest, ClassifyRequest, EmbeddingsRequest, EmbedRequest
from router.http.routes.scoring import RerankRequest, ScoreRequest
from router.http.routes.tokenize import DetokenizeRequest, TokenizePromptRequest
from router.http.tgi.routes import CompatGenerateRequest, GenerateRequest
from router.http.transport.body import BodyModel, LenientBodyModel
from router.http.transport.error_responses import (
    AnthropicErrorReply,
    ErrorReply,
    OllamaErrorReply,
    OpenAIErrorReply,
    TgiErrorReply,
    find_error_reply_type,
)
from router.validation.bounds import OpenApiBounds

SCHEMA_REFERENCE = "#/components/schemas/{model}"
LICENSE = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
TGI_ERROR_SCHEMA = {"type": "object", "required": ["error", "error_type"],
                    "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}}}
OPENAI_ERROR_SCHEMA = {"type": "object", "required": ["error"], "properties": {"error": {
    "type": "object", "required": ["message", "type", "param", "code"], "properties": {
        "message": {"type": "string"}, "type": {"type": "string"}, "param": {"type": ["string", "null"]},
        "code": {"type": ["string", "null"]}}}}}
OLLAMA_ERROR_SCHEMA = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
ANTHROPIC_ERROR_SCHEMA = {"type": "object", "required": ["type", "error"], "properties": {
    "type": {"const": "error"}, "error": {"type": "object", "required": ["type", "message"], "properties": {
        "type": {"type": "string"}, "message": {"type": "string"}}}}}
# Name and schema of each format of errors.
ERROR_SCHEMAS: Mapping[type[ErrorReply], tuple[str, Mapping[str, Any]]] = {
    TgiErrorReply: ("Error", TGI_ERROR_SCHEMA), OpenAIErrorReply: ("ApiError", OPENAI_ERROR_SCHEMA),
    AnthropicErrorReply: ("AnthropicError", ANTHROPIC_ERROR_SCHEMA),
    OllamaErrorReply: ("OllamaError", OLLAMA_ERROR_SCHEMA)}
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
    "501": "It is not served.",
    "503": "No shards are ready.",
}

COMMON_ERROR_STATUSES = ERROR_DESCRIPTIONS.keys() - {"403", "404", "409", "501"}  # statuses of every route with a body
OPENAI_ERROR_DESCRIPTIONS = ERROR_DESCRIPTIONS | {
    "400": "Something in the body is not as it must be.",
    "424": "The adapter cannot be fetched, or is not sound.",
    "500": "It failed while it was computed, or by a fault of the server.",
}
PAGE_CSS = ("body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
            "overflow-wrap:anywhere;color-scheme:light dark}"
            "code,pre{background:#8882;padding:0 .2em}table{border-collapse:collapse;width:100%}"
            "td,th{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0;border-bottom:1px solid #8884}"
            "details{margin:.4rem 0 .4rem 1rem}textarea,input{box-sizing:border-box;width:100%;font:14px monospace}"
            "pre{max-height:20rem;overflow:auto;white-space:pre-wrap}button{font:inherit;min-height:2rem}"
            "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}a{color:#8cf}}")
CONTENT_SECURITY_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src "
                            "'self'; connect-src 'self'; base-uri 'none'; form-action 'none'"}
SCRIPT_NAME = "try-it.js"
SCRIPT = (Path(__file__).parent / "docs_try_it.js").read_text(encoding="utf-8")
Schemas = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class QueryParameter:
    """An optional parameter in the URL of a route."""

    name: str
    description: str
    json_type: str = "string"


@dataclass(frozen=True, slots=True)
class DocumentedRoute:
    """A route as the page at /docs and the OpenAPI document show it."""

    method: str
    path: str
    summary: str
    body_models: tuple[type[BodyModel], ...] = ()  # one of these, or none
    can_stream: bool = False  # answers, or may answer, with a stream
    stream_media_type: str = "text/event-stream"
    response_media_type: str = "application/json"
    extra_error_statuses: tuple[str, ...] = ()  # error statuses beyond those common to routes of its kind
    query_parameters: tuple[QueryParameter, ...] = ()


SINCE_PARAMETER = QueryParameter("since", "Number of the step after which buffered steps begin.", "integer")
GENERATE_ROUTES = (
    DocumentedRoute("POST", "/generate", "Goes on with a text; the answer comes whole.", (GenerateRequest,)),
    DocumentedRoute("POST", "/generate_stream", "Goes on with a text; an event for every token.", (GenerateRequest,),
                    can_stream=True),
    DocumentedRoute("POST", "/",
                    "As the first servers of text-generation-inference took it: whole, in an array of one, or as a "
                    "stream. A model that only makes embeddings gives those of its `inputs`.",
                    (CompatGenerateRequest,), can_stream=True),
    DocumentedRoute("POST", "/v1/chat/completions", "The next message of a chat, whole or as a stream.", (ChatRequest,),
                    can_stream=True),
    DocumentedRoute("POST", "/v1/completions", "Goes on with one text or several, whole or as a stream.",
                    (CompletionRequest,), can_stream=True),
    DocumentedRoute("POST", "/invocations", "SageMaker's route: the body of `/`, of a chat or of a completion.",
                    (CompatGenerateRequest, ChatRequest, CompletionRequest), can_stream=True),
    DocumentedRoute("POST", "/vertex", "Vertex AI's route: several bodies of `/generate` or of chats.",
                    (VertexRequest,)),
    DocumentedRoute("POST", "/tokenize", "The tokens of a text and where they stand in it; to vLLM's body their ids.",
                    (GenerateRequest, TokenizePromptRequest)),
    DocumentedRoute("POST", "/detokenize", "The text of tokens, as clients of vLLM ask for it.", (DetokenizeRequest,)),
    DocumentedRoute("POST", "/chat_tokenize", "The prompt that the model's template makes of a chat, and its tokens.",
                    (ChatRequest,)),)
ANTHROPIC_ROUTES = (
    DocumentedRoute("POST", "/v1/messages", "The next message of a chat, whole or as a stream.",
                    (AnthropicMessagesRequest,), can_stream=True),
    DocumentedRoute("POST", "/v1/messages/count_tokens", "The number of tokens in the prompt of a chat.",
                    (AnthropicCountTokensRequest,)),
)
RESPONSES_ROUTES = (
    DocumentedRoute("POST", "/v1/responses", "The answer to a conversation, as OpenAI's Responses API has it; nothing "
                    "is stored.", (ResponsesRequest,), can_stream=True),
)
POOLING_ROUTES = (
    DocumentedRoute("POST", "/embed", "The embedding of a text.", (EmbedRequest,)),
    DocumentedRoute("POST", "/v1/embeddings", "The embeddings of one text or several, as OpenAI has them.",
                    (EmbeddingsRequest,)),
    DocumentedRoute("POST", "/classify", "What a text names, by the labels of its tokens.", (ClassifyRequest,)),
    DocumentedRoute("POST", "/classify_batch", "The same for several texts.", (ClassifyBatchRequest,)),
    *(DocumentedRoute("POST", path, "Documents, those first whose embeddings are most similar to that of a query.",
                      (RerankRequest,)) for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
    *(DocumentedRoute("POST", path, "How similar the embeddings of texts are, as vLLM scores pairs.", (ScoreRequest,))
      for path in ("/score", "/v1/score")),
)
ADAPTER_ROUTES = (
    DocumentedRoute("GET", "/v1/adapters", "The adapters that are known: what they are, and how things are with them.",
                    extra_error_statuses=("422",)),
    DocumentedRoute("POST", "/v1/adapters", "Fetches an adapter anew and loads it; answers when it is there.",
                    (LoadAdapterRequest,), extra_error_statuses=("403", "404", "409")),
    DocumentedRoute("DELETE", "/v1/adapters/{id}", "Removes an adapter, which is unloaded when no request uses it.",
                    extra_error_statuses=("403", "409", "422")),
    DocumentedRoute("POST", "/v1/load_lora_adapter", "Loads an adapter, as clients of vLLM ask for it.",
                    (LoadLoraAdapterRequest,), response_media_type="text/plain",
                    extra_error_statuses=("403", "404", "409")),
    DocumentedRoute("POST", "/v1/unload_lora_adapter", "Forgets an adapter, as clients of vLLM ask for it.",
                    (UnloadLoraAdapterRequest,), response_media_type="text/plain",
                    extra_error_statuses=("403", "404", "409")),)
SERVER_INFO_ROUTES = (
    DocumentedRoute("GET", "/info", "The model, its limits and the version of the server."),
    DocumentedRoute("GET", "/version", "The version, as clients of vLLM ask for it."),
    DocumentedRoute("GET", "/tokenizer_info", "The configuration of the tokenizer, as clients of vLLM ask for it."),
    DocumentedRoute("GET", "/v1/models",
                    "The model that is served and its adapters, as clients of OpenAI ask for them."),
    DocumentedRoute("GET", "/v1/models/{id}", "One of them.", extra_error_statuses=("404",)),
    DocumentedRoute(
        "GET", "/v1/requests", "The client's own requests: unfinished ones, then those that ended last.",
        extra_error_statuses=("422",), query_parameters=(
            QueryParameter("limit", "Number of requests, up to 500; 100 by default.", "integer"),
            QueryParameter("state", "`waiting`, `running` or `over`."),
            QueryParameter("adapter", "Adapter that they use; empty for those without one."),
            QueryParameter("error_type", "Why they failed or were refused; `any` for all that did."),
            QueryParameter("finish_reason", "Why their text ended, such as `length`."),
            QueryParameter("min_total_ms", "Time that they took at least.", "integer"))),
    DocumentedRoute("DELETE", "/v1/requests/{id}", "Cancels one of them, which is answered with 499."),
    DocumentedRoute("GET", "/v1/requests/{id}/explain", "What the time of a request went to."),
    DocumentedRoute("GET", "/metrics", "What Prometheus collects.", response_media_type="text/plain"),
    DocumentedRoute("GET", "/ui", "The page for browsers: playground, live batch, requests, server.",
                    response_media_type="text/html"),
    DocumentedRoute("GET", "/ui/{file}", "A file that the page loads.", response_media_type="*/*",
                    extra_error_statuses=("404",)),
    DocumentedRoute("GET", "/docs", "This page.", response_media_type="text/html"),
    DocumentedRoute("GET", f"/docs/{SCRIPT_NAME}", "Its script.", response_media_type="text/javascript"),
    DocumentedRoute("GET", "/api-doc/openapi.json", "The OpenAPI document of these routes."),
    DocumentedRoute("GET", "/openapi.json", "The same."),
)
ENGINE_ROUTES = (
    DocumentedRoute("GET", "/v1/engine/state", "The engine now: running sequences, queue, cache blocks, rates.",
                    extra_error_statuses=("422",)),
    DocumentedRoute("GET", "/v1/engine/events", "The same, and then the steps as they run, as a stream.",
                    can_stream=True, response_media_type="", extra_error_statuses=("422", "429"),
                    query_parameters=(SINCE_PARAMETER,)),
    DocumentedRoute("GET", "/v1/engine/trace", "The buffered steps in Chrome's trace-event format, for Perfetto.",
                    extra_error_statuses=("404", "422"), query_parameters=(
                        SINCE_PARAMETER, QueryParameter("until", "Number of the last one of them.", "integer"))),
    DocumentedRoute("GET", "/v1/engine/settings", "All settings of the server, each with where it came from.",
                    extra_error_statuses=("403", "422")),
    DocumentedRoute("POST", "/v1/engine/simulate", "The same requests, or others, under another way of batching.",
                    (SimulateRequest,), extra_error_statuses=("404",)),
)
OLLAMA_ROUTES = (
    DocumentedRoute("POST", "/api/chat", "The next message of a chat, as a stream of lines unless `stream` is false.",
                    (OllamaChatRequest,), can_stream=True, stream_media_type="application/x-ndjson",
                    extra_error_statuses=("404",)),
    DocumentedRoute("POST", "/api/generate",
                    "The answer to a prompt, or with `raw` what follows it, as a stream likewise.",
                    (OllamaGenerateRequest,), can_stream=True, stream_media_type="application/x-ndjson",
                    extra_error_statuses=("404",)),
    DocumentedRoute("POST", "/api/embed", "The embeddings of one text or several, of unit length.",
                    (OllamaEmbedRequest,), extra_error_statuses=("404",)),
    DocumentedRoute("POST", "/api/embeddings", "The embedding of a text.", (OllamaEmbeddingsRequest,),
                    extra_error_statuses=("404",)),
    DocumentedRoute("GET", "/api/tags", "The model that is served and its adapters."),
    DocumentedRoute("GET", "/api/ps", "The same, as models in memory."),
    DocumentedRoute("POST", "/api/show", "One of them: its template, context length and capabilities.",
                    (OllamaShowRequest,), extra_error_statuses=("404",)),
    DocumentedRoute("GET", "/api/version", "The version of the server."),
    *(DocumentedRoute(method, path, "Refused: the model is chosen when the server is started.",
                      extra_error_statuses=("501",)) for method, path in REFUSED_ROUTES),)
PROBE_ROUTES = (
    DocumentedRoute("GET", "/health", "200 if requests are served, else 503.", response_media_type=""),
    DocumentedRoute("GET", "/", "The same; browsers get the page.", response_media_type=""),
    DocumentedRoute("GET", "/ping", "The same, as SageMaker asks for it.", response_media_type=""),
    DocumentedRoute("GET", "/ready", "200 if requests should be sent here, else 503 with the reason."),
    DocumentedRoute("GET", "/live", "200 from any server that answers."),
    DocumentedRoute("GET", "/startup", "How far the start of the shards is; 200 once it is over."),
)
BATCHING_STUDY_ROUTES = (  # with --dialect batching
    DocumentedRoute("POST", "/inference",
                    "Goes on with a text for so many tokens, as the effective-batching study has it; the "
                    "prompt and what follows come as one text.", (StudyInferenceRequest,)),
    DocumentedRoute("GET", "/stats",
                    "Latencies and throughput of all that was answered, which are also written to a file."),
    DocumentedRoute("POST", "/", "A sentence that names these two.", response_media_type="text/plain"),
)
ROUTE_SECTIONS: Mapping[str, tuple[DocumentedRoute, ...]] = {
    "Generate": GENERATE_ROUTES, "OpenAI's Responses API": RESPONSES_ROUTES, "Anthropic's Messages": ANTHROPIC_ROUTES,
    "Embed and classify": POOLING_ROUTES, "Adapters": ADAPTER_ROUTES, "Ask the server": SERVER_INFO_ROUTES,
    "Watch the engine": ENGINE_ROUTES, "Ollama": OLLAMA_ROUTES, "Probes": PROBE_ROUTES}
# Bodies of the same routes with --compat lorax.
LORAX_BODY_MODELS: dict[str, tuple[type[BodyModel], ...]] = {
    "/": (LoraxCompatGenerateRequest,),
    "/generate": (LoraxGenerateRequest,),
    "/generate_stream": (LoraxGenerateRequest,),
    "/invocations": (LoraxCompatGenerateRequest, LoraxChatRequest, LoraxCompletionRequest),
    "/tokenize": (LoraxTokenizeRequest,),
    "/v1/chat/completions": (LoraxChatRequest,),
    "/v1/completions": (LoraxCompletionRequest,),
}


def get_route_sections(compat: str, dialect: str = "none") -> Mapping[str, tuple[DocumentedRoute, ...]]:
    """Return the sections by title for these values of --compat and --dialect."""
    body_models = LORAX_BODY_MODELS if compat == "lorax" else {}
    generate_routes = tuple(replace(entry, body_models=body_models.get(entry.path, entry.body_models))
                            for entry in GENERATE_ROUTES)
    if dialect != "batching":
        return {**ROUTE_SECTIONS, "Generate": generate_routes}
    study_paths = {entry.path for entry in BATCHING_STUDY_ROUTES}
    other_generate_routes = tuple(entry for entry in generate_routes if entry.path not in study_paths)
    return {"The batching study": BATCHING_STUDY_ROUTES, **ROUTE_SECTIONS, "Generate": other_generate_routes}


def build_openapi_document(compat: str = "none", dialect: str = "none") -> dict[str, Any]:
    sections = get_route_sections(compat, dialect)
    routes = [entry for section in sections.values() for entry in section]
    body_models = list(dict.fromkeys(body for entry in routes for body in entry.body_models))
    _, schemas = models_json_schema([(body, "validation") for body in body_models], ref_template=SCHEMA_REFERENCE)
    for model in iter_subclasses(BodyModel):
        schema = schemas["$defs"].get(model.__name__, {})
        if schema and issubclass(model, LenientBodyModel) and model.ignored_fields:
            schema["description"] += f" Ignored: {', '.join(sorted(model.ignored_fields))}."
        properties = schema.get("properties", {})
        for name in model.model_fields.keys() & properties.keys():
            for bounds in model.model_fields[name].metadata:
                if isinstance(bounds, OpenApiBounds):
                    properties[name].update(bounds.keywords)
        for name, field in properties.items():
            field.setdefault("description", describe_field(model, name))
    error_schemas = dict(ERROR_SCHEMAS[find_error_reply_type(entry.path, compat)] for entry in routes)
    paths: dict[str, dict[str, Any]] = {}
    for title, section in sections.items():
        for entry in section:
            paths.setdefault(entry.path, {})[entry.method.lower()] = build_operation(entry, title, compat)
    return {
        "openapi": "3.1.0",
        "info": {"title": "weft", "version": version("weft"), "license": LICENSE,
                 "description": "Serves large language models, as text-generation-inference does."},
        "paths": paths,
        "components": {"schemas": {**schemas["$defs"], **error_schemas},
                       "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


def iter_subclasses(body_model: type[BodyModel]) -> Iterator[type[BodyModel]]:
    for subclass in body_model.__subclasses__():
        yield subclass
        yield from iter_subclasses(subclass)


def build_operation(route: DocumentedRoute, title: str, compat: str) -> dict[str, Any]:
    path_words = "".join(letter if letter.isalnum() else " " for letter in route.path).split()
    operation_object: dict[str, Any] = {
        "summary": route.summary, "tags": [title], "operationId": "_".join([route.method.lower(), *path_words]),
        "responses": build_responses(route, compat)}
    if route.body_models:
        schema_references = [{"$ref": SCHEMA_REFERENCE.format(model=body.__name__)} for body in route.body_models]
        schema: dict[str, Any] = schema_references[0] if len(schema_references) == 1 else {"anyOf": schema_references}
        operation_object["requestBody"] = {"required": True, "content": {"application/json": {
            "schema": schema, "example": EXAMPLE_BODIES[route.path]}}}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", route.path)]
    parameters += [{"name": parameter.name, "in": "query", "description": parameter.description,
                    "schema": {"type": parameter.json_type}} for parameter in route.query_parameters]
    return operation_object | ({"parameters": parameters} if parameters else {})


def build_responses(route: DocumentedRoute, compat: str) -> dict[str, Any]:
    media_types = ([route.response_media_type] * bool(route.response_media_type)
                   + [route.stream_media_type] * route.can_stream)
    success: dict[str, Any] = {"description": "As asked."}
    if media_types:
        success["content"] = {kind: {} for kind in media_types}
    error_statuses = (set(COMMON_ERROR_STATUSES if route.body_models else ("401", "503"))
                      | set(route.extra_error_statuses))
    if "{id}" in route.path:
        error_statuses.add("404")
    descriptions, reply_type = ERROR_DESCRIPTIONS, find_error_reply_type(route.path, compat)
    if reply_type is not TgiErrorReply:
        descriptions = OPENAI_ERROR_DESCRIPTIONS
        if "422" in error_statuses:
            error_statuses = error_statuses - {"422"} | {"400"}
    content = {"application/json": {"schema": {"$ref": SCHEMA_REFERENCE.format(model=ERROR_SCHEMAS[reply_type][0])}}}
    return {"200": success, **{code: {"description": descriptions[code], "content": content}
                               for code in sorted(error_statuses)}}


@dataclass(frozen=True, slots=True)
class RenderedDocs:
    """The OpenAPI document and the page, as they are sent."""

    openapi_document: bytes
    page: bytes


def render_docs(compat: str, dialect: str) -> RenderedDocs:
    document = build_openapi_document(compat, dialect)
    return RenderedDocs(json.dumps(document).encode(), render_docs_page(document, compat, dialect).encode())


class DocsRoutes:
    """Handlers of `/docs`, its script, and the OpenAPI document. The page and the document are rendered once, on first
    use, in a thread."""

    def __init__(self, compat: str, dialect: str) -> None:
        self._compat, self._dialect = compat, dialect
        self._rendered: RenderedDocs | None = None
        self._render_lock = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/docs", self.get_docs_page), web.get(f"/docs/{SCRIPT_NAME}", self.get_script),
                *(web.get(path, self.get_openapi_document) for path in ("/api-doc/openapi.json", "/openapi.json"))]

    async def get_docs_page(self, _: web.Request) -> web.Response:
        return web.Response(body=(await self._get_rendered()).page, content_type="text/html", charset="utf-8",
                            headers=CONTENT_SECURITY_HEADERS)

    async def get_script(self, _: web.Request) -> web.Response:
        return web.Response(text=SCRIPT, content_type="text/javascript", headers={"Cache-Control": "no-cache"})

    async def get_openapi_document(self, _: web.Request) -> web.Response:
        return web.Response(body=(await self._get_rendered()).openapi_document, content_type="application/json")

    async def _get_rendered(self) -> RenderedDocs:
        async with self._render_lock:
            if self._rendered is None:
                self._rendered = await asyncio.to_thread(render_docs, self._compat, self._dialect)
        return self._rendered


def render_docs_page(openapi_document: Mapping[str, Any], compat: str = "none", dialect: str = "none") -> str:
    """Render the page. Its URLs are relative, so that it also works behind a proxy that adds a prefix."""
    info, schemas = openapi_document["info"], openapi_document["components"]["schemas"]
    parts: list[str] = []
    for title, section in get_route_sections(compat, dialect).items():
        parts.append(f"<h2>{escape(title)}</h2>")
        for route in section:
            parts.append(f"<p><code>{route.method} {escape(route.path)}</code> {escape(route.summary)}</p>")
            parts += [schema_html(schemas, body.__name__) for body in route.body_models]
            parts.append(form_html(route, openapi_document["paths"][route.path][route.method.lower()]))
    return (f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<title>{info['title']}</title><style>{PAGE_CSS}</style><main>"
            f"<h1>{info['title']} {info['version']}</h1><p>{escape(info['description'])} "
            f'<a href="openapi.json">openapi.json</a></p>'
            "<p><label>API key, if the server asks for one; it stays in this tab "
            f"<input id=api-key type=password autocomplete=off></label></p>{''.join(parts)}</main>"
            f"<script src=docs/{SCRIPT_NAME}></script>")


def form_html(route: DocumentedRoute, operation: Mapping[str, Any]) -> str:
    """Render the form that sends a request of this route: a field for each parameter, and the example of the body."""
    fields = [f"<label>{escape(parameter['name'])} <input name={escape(parameter['name'])} "
              f"data-in={parameter['in']} autocomplete=off></label>" for parameter in operation.get("parameters", ())]
    if route.body_models:
        example = operation["requestBody"]["content"]["application/json"]["example"]
        body = json.dumps(example, indent=2, ensure_ascii=False)
        fields.append(f"<label>body <textarea name=body rows={min(body.count(chr(10)) + 1, 12)}>{escape(body)}"
                      "</textarea></label>")
    name = escape(f"{route.method} {route.path}")
    return (f"<details><summary>try <span>{name}</span></summary>"
            f'<form data-method={route.method} data-path="{escape(route.path)}">{"".join(fields)}'
            f'<button aria-label="Send {name}">Send</button> <button type=button hidden>Stop</button>'
            "<output></output><pre tabindex=0 hidden aria-label=answer></pre></form></details>")


def schema_html(schemas: Schemas, name: str) -> str:
    """Render a table of the schema's fields, followed by those of the schemas that they refer to."""
    rows: list[str] = []
    type_words: list[str] = []
    for field, field_schema in schemas[name].get("properties", {}).items():
        default = ("needed" if field in schemas[name].get("required", ())
                   else json.dumps(field_schema["default"]) if "default" in field_schema else "")
        kind = field_type(field_schema)
        rows.append(f"<tr><td><code>{escape(field)}</code><td>{escape(kind)}<td>{escape(default)}")
        type_words += kind.split()
    referenced_html = "".join(schema_html(schemas, word) for word in dict.fromkeys(type_words) if word[:1].isupper())
    return (f"<details><summary>{escape(name)}</summary><table><tr><th>field<th>type<th>default{''.join(rows)}</table>"
            f"{referenced_html}</details>")


def field_type(field_schema: Mapping[str, Any]) -> str:
    if "$ref" in field_schema:
        return str(field_schema["$ref"]).rpartition("/")[2]
    if kinds := field_schema.get("anyOf") or field_schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(field_type, kinds)))
    type_name = str(field_schema.get("type", "anything"))
    return (f"array of {field_type(field_schema['items'])}" if type_name == "array" and "items" in field_schema
            else type_name)
