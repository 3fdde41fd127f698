"""Error responses in TGI's format: a status and a JSON object with `error` and `error_type`. OpenAI's format is in
http/openai/errors.py.

An unexpected exception is logged with its traceback; the client only receives `Internal server error`.
"""

import json
import logging
from dataclasses import dataclass
from math import ceil

from aiohttp import web

from router.errors import (
    AdapterLoadFailed,
    AdapterNotFound,
    ChatTemplateFailed,
    ClassificationFailed,
    EmbeddingFailed,
    GenerationFailed,
    InvalidRequest,
    InvalidTools,
    NotReady,
    Overloaded,
    TimedOut,
)

logger = logging.getLogger(__name__)

MAX_MESSAGE_CHARS = 500  # characters: a message may repeat a client's value of any length

# Status, `error_type` and prefix of the message. Clients act on status and type: `overloaded` means "retry later".
ERRORS_BY_EXCEPTION: dict[type[Exception], tuple[int, str, str]] = {
    InvalidRequest: (422, "validation", "Input validation error: "),
    ChatTemplateFailed: (422, "template_error", "Template error: "),
    InvalidTools: (422, "tool_error", "Tool error: "),
    Overloaded: (429, "overloaded", "Model is overloaded: "),
    NotReady: (503, "overloaded", "Model is not ready: "),
    AdapterNotFound: (424, "generation", "Request failed during generation: "),
    AdapterLoadFailed: (424, "generation", "Request failed during generation: "),
    EmbeddingFailed: (500, "embedding_failure", "Embedding Failure: "),
    ClassificationFailed: (500, "classification_failure", "Classification Failure: "),
    GenerationFailed: (424, "generation", "Request failed during generation: "),
    TimedOut: (408, "timeout", "Request timed out: "),
}
# For HTTP exceptions of aiohttp.
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
class TgiErrorReply:
    """Error response in TGI's format."""

    status: int
    error_type: str
    message: str
    retry_after: float | None = None

    @classmethod
    def from_exception(cls, error: Exception) -> "TgiErrorReply":
        if isinstance(error, web.HTTPException):
            return cls(error.status, TYPES_BY_STATUS.get(error.status, "http"),
                       shorten_message(error.text or error.reason))
        for exception_type, (status, error_type, prefix) in ERRORS_BY_EXCEPTION.items():
            if isinstance(error, exception_type):
                retry_after = getattr(error, "retry_after", 1.0) if error_type == "overloaded" else None
                return cls(status, getattr(error, "error_type", "") or error_type, shorten_message(f"{prefix}{error}"),
                           retry_after)
        logger.error("a request failed unexpectedly", exc_info=error)
        return cls(500, "internal", "Internal server error")

    def to_json(self) -> str:
        return json.dumps({"error": self.message, "error_type": self.error_type}, separators=(",", ":"))

    def to_response(self) -> web.Response:
        return error_response(self.status, self.to_json(), self.retry_after)


def error_response(status: int, body: str, retry_after: float | None) -> web.Response:
    """Return a response with a JSON body. `retry_after` is in seconds; the header Retry-After has it rounded up, and
    at least 1."""
    response = web.Response(status=status, body=body.encode(), content_type="application/json")
    if retry_after is not None:
        response.headers["Retry-After"] = str(max(ceil(retry_after), 1))
    return response


def shorten_message(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]} ..."
