"""Examples of request bodies, one for each route that has a body: in the OpenAPI document, and in the forms of the page
at /docs, which send them."""

from collections.abc import Mapping
from typing import Any

TEXT = "Once upon a time"
GENERATE: Mapping[str, Any] = {"inputs": TEXT, "parameters": {"max_new_tokens": 40}}
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
CHAT: Mapping[str, Any] = {"model": "tgi", "messages": MESSAGES, "max_tokens": 40}
COMPLETION: Mapping[str, Any] = {"model": "tgi", "prompt": TEXT, "max_tokens": 40}
ANTHROPIC: Mapping[str, Any] = {"model": "tgi", "messages": MESSAGES, "max_tokens": 40}
DOCUMENTS = ["Paris is the capital of France.", "Cats sleep most of the day."]
RERANK: Mapping[str, Any] = {"query": "Where is Paris?", "documents": DOCUMENTS}
SCORE: Mapping[str, Any] = {"text_1": "Where is Paris?", "text_2": DOCUMENTS}
NAMED_MODEL: Mapping[str, Any] = {"model": "tgi"}

# By path: of its methods at most one has a body.
EXAMPLE_BODIES: Mapping[str, Mapping[str, Any]] = {
    "/": GENERATE,
    "/generate": GENERATE,
    "/generate_stream": GENERATE,
    "/invocations": GENERATE,
    "/v1/chat/completions": {**CHAT, "stream": True},
    "/v1/completions": COMPLETION,
    "/vertex": {"instances": [GENERATE]},
    "/tokenize": {"inputs": TEXT},
    "/detokenize": {"tokens": [10, 20, 30]},
    "/chat_tokenize": CHAT,
    "/v1/responses": {"model": "tgi", "input": "What is the capital of France?", "max_output_tokens": 40},
    "/v1/messages": ANTHROPIC,
    "/v1/messages/count_tokens": {"model": "tgi", "messages": MESSAGES},
    "/embed": {"inputs": TEXT},
    "/v1/embeddings": {"input": [TEXT]},
    "/classify": {"inputs": "Anna lives in Paris."},
    "/classify_batch": {"inputs": ["Anna lives in Paris."]},
    "/rerank": RERANK,
    "/v1/rerank": RERANK,
    "/v2/rerank": RERANK,
    "/score": SCORE,
    "/v1/score": SCORE,
    "/v1/adapters": {"id": "pirate"},
    "/v1/load_lora_adapter": {"lora_name": "pirate", "lora_path": "pirate"},
    "/v1/unload_lora_adapter": {"lora_name": "pirate"},
    "/v1/engine/simulate": {"batching": "static", "max_batch_size": 2, "requests": [
        {"at": 0.0, "prompt_tokens": 20, "output_tokens": 30}, {"at": 0.0, "prompt_tokens": 40, "output_tokens": 5},
        {"at": 0.01, "prompt_tokens": 10, "output_tokens": 10}]},
    "/api/chat": {**NAMED_MODEL, "messages": MESSAGES},
    "/api/generate": {**NAMED_MODEL, "prompt": TEXT},
    "/api/embed": {**NAMED_MODEL, "input": TEXT},
    "/api/embeddings": {**NAMED_MODEL, "prompt": TEXT},
    "/api/show": NAMED_MODEL,
    "/inference": {"prompt": TEXT, "num_tokens": 10},
}
