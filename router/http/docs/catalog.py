"""Catalog of all routes as data, from which the page at /docs and the OpenAPI document are generated.

A test compares it with the routes of the application.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from router.http.lorax.openai_routes import LoraxChat, LoraxCompletion
from router.http.lorax.routes import LoraxCompatGenerate, LoraxGenerate, TokenizeText
from router.http.openai.chat import ChatRequest
from router.http.openai.completions import Completion
from router.http.routes.adapters import LoadAdapter, LoadLora, UnloadLora
from router.http.routes.batching_study import InferenceRequest
from router.http.routes.classify import ClassifyBatchRequest, ClassifyRequest
from router.http.routes.clouds import Instances
from router.http.routes.embeddings import EmbeddingsRequest, EmbedRequest
from router.http.tgi.routes import CompatGenerate, Generate
from router.http.transport.body import Foreign


@dataclass(frozen=True, slots=True)
class Entry:
    method: str
    path: str
    summary: str
    bodies: tuple[type[Foreign], ...] = ()  # one of these, or none
    streams: bool = False  # answers, or may answer, with server-sent events
    answer: str = "application/json"
    refusals: tuple[str, ...] = ()  # error statuses beyond those common to routes of its kind


GENERATING = (
    Entry("POST", "/generate", "Goes on with a text; the answer comes whole.", (Generate,)),
    Entry("POST", "/generate_stream", "Goes on with a text; an event for every token.", (Generate,), streams=True),
    Entry("POST", "/", "As the first servers of text-generation-inference took it: whole, in an array of one, or as a "
          "stream.", (CompatGenerate,), streams=True),
    Entry("POST", "/v1/chat/completions", "The next message of a chat, whole or as a stream.", (ChatRequest,),
          streams=True),
    Entry("POST", "/v1/completions", "Goes on with one text or several, whole or as a stream.", (Completion,),
          streams=True),
    Entry("POST", "/invocations", "SageMaker's route: the body of `/`, of a chat or of a completion.",
          (CompatGenerate, ChatRequest, Completion), streams=True),
    Entry("POST", "/vertex", "Vertex AI's route: several bodies of `/generate` or of chats.", (Instances,)),
    Entry("POST", "/tokenize", "The tokens of a text and where they stand in it.", (Generate,)),
    Entry("POST", "/chat_tokenize", "The prompt that the model's template makes of a chat, and its tokens.",
          (ChatRequest,)),
)
READING = (
    Entry("POST", "/embed", "The embedding of a text.", (EmbedRequest,)),
    Entry("POST", "/v1/embeddings", "The embeddings of one text or several, as OpenAI has them.", (EmbeddingsRequest,)),
    Entry("POST", "/classify", "What a text names, by the labels of its tokens.", (ClassifyRequest,)),
    Entry("POST", "/classify_batch", "The same for several texts.", (ClassifyBatchRequest,)),
)
ADAPTERS = (
    Entry("GET", "/v1/adapters", "The adapters that are known: what they are, and how things are with them.",
          refusals=("422",)),
    Entry("POST", "/v1/adapters", "Fetches an adapter anew and loads it; answers when it is there.", (LoadAdapter,),
          refusals=("403", "404", "409")),
    Entry("DELETE", "/v1/adapters/{id}", "Forgets an adapter, which leaves as soon as nobody needs it.",
          refusals=("403", "409", "422")),
    Entry("POST", "/v1/load_lora_adapter", "Loads an adapter, as clients of vLLM ask for it.", (LoadLora,),
          answer="text/plain", refusals=("403", "404", "409")),
    Entry("POST", "/v1/unload_lora_adapter", "Forgets an adapter, as clients of vLLM ask for it.", (UnloadLora,),
          answer="text/plain", refusals=("403", "404", "409")),
)
TELLING = (
    Entry("GET", "/info", "The model, its limits and the version of the server."),
    Entry("GET", "/v1/models", "The model that is served and its adapters, as clients of OpenAI ask for them."),
    Entry("GET", "/v1/requests/{id}/explain", "What the time of a request went to."),
    Entry("GET", "/metrics", "What Prometheus collects.", answer="text/plain"),
    Entry("GET", "/docs", "This page.", answer="text/html"),
    Entry("GET", "/api-doc/openapi.json", "The OpenAPI document of these routes."),
)
PROBES = (
    Entry("GET", "/health", "200 if requests are served, else 503.", answer=""),
    Entry("GET", "/", "The same.", answer=""),
    Entry("GET", "/ping", "The same, as SageMaker asks for it.", answer=""),
    Entry("GET", "/ready", "200 if requests should be sent here, else 503 with the reason."),
    Entry("GET", "/live", "200 from any server that answers."),
    Entry("GET", "/startup", "How far the start of the shards is; 200 once it is over."),
)
STUDY = (  # with --dialect batching
    Entry("POST", "/inference", "Goes on with a text for so many tokens, as the effective-batching study has it; the "
          "prompt and what follows come as one text.", (InferenceRequest,)),
    Entry("GET", "/stats", "Latencies and throughput of all that was answered, which are also written to a file."),
    Entry("POST", "/", "A sentence that names these two.", answer="text/plain"),
)
SECTIONS: Mapping[str, tuple[Entry, ...]] = {
    "Generate": GENERATING, "Embed and classify": READING, "Adapters": ADAPTERS, "Ask the server": TELLING,
    "Probes": PROBES}
# Bodies of the same routes with --compat lorax.
LORAX: dict[str, tuple[type[Foreign], ...]] = {
    "/": (LoraxCompatGenerate,),
    "/generate": (LoraxGenerate,),
    "/generate_stream": (LoraxGenerate,),
    "/invocations": (LoraxCompatGenerate, LoraxChat, LoraxCompletion),
    "/tokenize": (TokenizeText,),
    "/v1/chat/completions": (LoraxChat,),
    "/v1/completions": (LoraxCompletion,),
}


def sections(compat: str, dialect: str = "none") -> Mapping[str, tuple[Entry, ...]]:
    """Return the sections by title for these values of --compat and --dialect."""
    bodies = LORAX if compat == "lorax" else {}
    generating = tuple(replace(entry, bodies=bodies.get(entry.path, entry.bodies)) for entry in GENERATING)
    if dialect != "batching":
        return {**SECTIONS, "Generate": generating}
    study = {entry.path for entry in STUDY}
    others = tuple(entry for entry in generating if entry.path not in study)
    return {"The batching study": STUDY, **SECTIONS, "Generate": others}
