"""How errors are told to clients: a status and a JSON object with `error` and `error_type`, as TGI's clients read it.
Errors of OpenAI's routes are in api_errors.py.

Knows nothing of routes. What is not one of ours is logged with its traceback, and the client learns nothing of it.
"""

import json
import logging
from dataclasses import dataclass
from math import ceil

from aiohttp import web

from router.errors import (
    AdapterFailed,
    AdapterMissing,
    ClassificationFailed,
    EmbeddingFailed,
    GenerationFailed,
    InvalidRequest,
    NotReady,
    Overloaded,
    TemplateFailed,
    TimedOut,
    ToolsFailed,
)

logger = logging.getLogger(__name__)

MOST_TOLD = 500  # characters: a text may name what the client gave, of any length

# Clients key on status and type: `overloaded` is the one that they take as "try again later".
KINDS: dict[type[Exception], tuple[int, str, str]] = {
    InvalidRequest: (422, "validation", "Input validation error: "),
    TemplateFailed: (422, "template_error", "Template error: "),
    ToolsFailed: (422, "tool_error", "Tool error: "),
    Overloaded: (429, "overloaded", "Model is overloaded: "),
    NotReady: (503, "overloaded", "Model is not ready: "),
    AdapterMissing: (424, "generation", "Request failed during generation: "),
    AdapterFailed: (424, "generation", "Request failed during generation: "),
    EmbeddingFailed: (500, "embedding_failure", "Embedding Failure: "),
    ClassificationFailed: (500, "classification_failure", "Classification Failure: "),
    GenerationFailed: (424, "generation", "Request failed during generation: "),
    TimedOut: (408, "timeout", "Request timed out: "),
}
# What is found before a request is understood.
TYPES_BY_STATUS = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "payload_too_large",
    415: "unsupported_media_type",
    422: "validation",
    424: "adapter_failed",
}


@dataclass(frozen=True, slots=True)
class Told:
    """An error as a client sees it."""

    status: int
    error_type: str
    text: str
    retry_after: float | None = None

    @classmethod
    def of(cls, error: Exception) -> "Told":
        if isinstance(error, web.HTTPException):
            return cls(error.status, TYPES_BY_STATUS.get(error.status, "http"), shortened(error.text or error.reason))
        for kind, (status, error_type, prefix) in KINDS.items():
            if isinstance(error, kind):
                later = getattr(error, "retry_after", 1.0) if error_type == "overloaded" else None
                return cls(status, getattr(error, "kind", "") or error_type, shortened(f"{prefix}{error}"), later)
        logger.error("a request failed unexpectedly", exc_info=error)
        return cls(500, "internal", "Internal server error")

    def json(self) -> str:
        return json.dumps({"error": self.text, "error_type": self.error_type}, separators=(",", ":"))

    def response(self) -> web.Response:
        return error_response(self.status, self.json(), self.retry_after)


def error_response(status: int, body: str, retry_after: float | None) -> web.Response:
    """An answer with a JSON body; `retry_after` are seconds after which another try makes sense."""
    answer = web.Response(status=status, body=body.encode(), content_type="application/json")
    if retry_after is not None:
        answer.headers["Retry-After"] = str(max(ceil(retry_after), 1))
    return answer


def shortened(text: str) -> str:
    return text if len(text) <= MOST_TOLD else f"{text[:MOST_TOLD]} ..."
