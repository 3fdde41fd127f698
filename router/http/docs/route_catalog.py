"""Catalog of all routes as data, from which the page at /docs and the OpenAPI document are generated.

A test compares it with the routes of the application.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from router.http.lorax.routes import (
    LoraxChatRequest,
    LoraxCompatGenerateRequest,
    LoraxCompletionRequest,
    LoraxGenerateRequest,
    LoraxTokenizeRequest,
)
from router.http.openai.chat import ChatRequest
from router.http.openai.completions import CompletionRequest
from router.http.routes.adapters import LoadAdapterRequest, LoadLoraAdapterRequest, UnloadLoraAdapterRequest
from router.http.routes.batching_study import StudyInferenceRequest
from router.http.routes.classify import ClassifyBatchRequest, ClassifyRequest
from router.http.routes.clouds import VertexRequest
from router.http.routes.embeddings import EmbeddingsRequest, EmbedRequest
from router.http.tgi.routes import CompatGenerateRequest, GenerateRequest
from router.http.transport.body import RequestBody


@dataclass(frozen=True, slots=True)
class DocumentedRoute:
    """A route as the page at /docs and the OpenAPI document show it."""

    method: str
    path: str
    summary: str
    body_models: tuple[type[RequestBody], ...] = ()  # one of these, or none
    can_stream: bool = False  # answers, or may answer, with server-sent events
    response_media_type: str = "application/json"
    extra_error_statuses: tuple[str, ...] = ()  # error statuses beyond those common to routes of its kind


GENERATE_ROUTES = (
    DocumentedRoute("POST", "/generate", "Goes on with a text; the answer comes whole.", (GenerateRequest,)),
    DocumentedRoute("POST", "/generate_stream", "Goes on with a text; an event for every token.", (GenerateRequest,),
                    can_stream=True),
    DocumentedRoute("POST", "/",
                    "As the first servers of text-generation-inference took it: whole, in an array of one, or as a "
                    "stream.", (CompatGenerateRequest,), can_stream=True),
    DocumentedRoute("POST", "/v1/chat/completions", "The next message of a chat, whole or as a stream.", (ChatRequest,),
                    can_stream=True),
    DocumentedRoute("POST", "/v1/completions", "Goes on with one text or several, whole or as a stream.",
                    (CompletionRequest,),
                    can_stream=True),
    DocumentedRoute("POST", "/invocations", "SageMaker's route: the body of `/`, of a chat or of a completion.",
                    (CompatGenerateRequest, ChatRequest, CompletionRequest), can_stream=True),
    DocumentedRoute("POST", "/vertex", "Vertex AI's route: several bodies of `/generate` or of chats.",
                    (VertexRequest,)),
    DocumentedRoute("POST", "/tokenize", "The tokens of a text and where they stand in it.", (GenerateRequest,)),
    DocumentedRoute("POST", "/chat_tokenize", "The prompt that the model's template makes of a chat, and its tokens.",
                    (ChatRequest,)),)
POOLING_ROUTES = (
    DocumentedRoute("POST", "/embed", "The embedding of a text.", (EmbedRequest,)),
    DocumentedRoute("POST", "/v1/embeddings", "The embeddings of one text or several, as OpenAI has them.",
                    (EmbeddingsRequest,)),
    DocumentedRoute("POST", "/classify", "What a text names, by the labels of its tokens.", (ClassifyRequest,)),
    DocumentedRoute("POST", "/classify_batch", "The same for several texts.", (ClassifyBatchRequest,)),
)
ADAPTER_ROUTES = (
    DocumentedRoute("GET", "/v1/adapters", "The adapters that are known: what they are, and how things are with them.",
                    extra_error_statuses=("422",)),
    DocumentedRoute("POST", "/v1/adapters", "Fetches an adapter anew and loads it; answers when it is there.",
                    (LoadAdapterRequest,), extra_error_statuses=("403", "404", "409")),
    DocumentedRoute("DELETE", "/v1/adapters/{id}", "Forgets an adapter, which leaves as soon as nobody needs it.",
                    extra_error_statuses=("403", "409", "422")),
    DocumentedRoute("POST", "/v1/load_lora_adapter", "Loads an adapter, as clients of vLLM ask for it.",
                    (LoadLoraAdapterRequest,),
                    response_media_type="text/plain", extra_error_statuses=("403", "404", "409")),
    DocumentedRoute("POST", "/v1/unload_lora_adapter", "Forgets an adapter, as clients of vLLM ask for it.",
                    (UnloadLoraAdapterRequest,), response_media_type="text/plain",
                    extra_error_statuses=("403", "404", "409")),)
SERVER_INFO_ROUTES = (
    DocumentedRoute("GET", "/info", "The model, its limits and the version of the server."),
    DocumentedRoute("GET", "/v1/models",
                    "The model that is served and its adapters, as clients of OpenAI ask for them."),
    DocumentedRoute("GET", "/v1/requests/{id}/explain", "What the time of a request went to."),
    DocumentedRoute("GET", "/metrics", "What Prometheus collects.", response_media_type="text/plain"),
    DocumentedRoute("GET", "/docs", "This page.", response_media_type="text/html"),
    DocumentedRoute("GET", "/api-doc/openapi.json", "The OpenAPI document of these routes."),
)
PROBE_ROUTES = (
    DocumentedRoute("GET", "/health", "200 if requests are served, else 503.", response_media_type=""),
    DocumentedRoute("GET", "/", "The same.", response_media_type=""),
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
    "Generate": GENERATE_ROUTES, "Embed and classify": POOLING_ROUTES, "Adapters": ADAPTER_ROUTES,
    "Ask the server": SERVER_INFO_ROUTES, "Probes": PROBE_ROUTES}
# Bodies of the same routes with --compat lorax.
LORAX_BODY_MODELS: dict[str, tuple[type[RequestBody], ...]] = {
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
