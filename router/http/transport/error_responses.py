"""Error responses in the format of each route's dialect (`find_error_reply_type`), and how errors are counted. A row of
ERROR_FORMATS tells everything about one exception. An unexpected exception is logged with its traceback; the client
only receives `Internal server error`."""

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple, Self

from aiohttp import web

from router.errors import (
    AdapterLoadFailed,
    AdapterNotFound,
    Cancelled,
    CancelledById,
    ChatTemplateFailed,
    ClassificationFailed,
    EmbeddingFailed,
    GenerationFailed,
    InvalidRequest,
    InvalidTools,
    MonitorBusy,
    NotReady,
    Overloaded,
    ShuttingDown,
    TimedOut,
)
from router.http.transport.body import BodyValidationError
from router.text.prompt_encoder import CONTEXT_LENGTH_EXCEEDED

logger = logging.getLogger(__name__)

MAX_MESSAGE_CHARS = 500  # characters: a message may repeat a client's value of any length
INVALID_REQUEST_ERROR, SERVER_ERROR = "invalid_request_error", "server_error"
SHUTTING_DOWN = "shutting_down"
RETRYABLE_TYPES = ("overloaded", SHUTTING_DOWN)  # answered with Retry-After
PROMPT_TOO_LONG = "the prompt is too long: "  # agents, and LiteLLM, know by these words that they must shorten it
COMPATS_WITH_OWN_ERRORS = ("tgi", "lorax")  # values of --compat with an error format of their own below /v1


class ErrorReplyFormats(NamedTuple):
    """How an exception is reported. Clients act on status and type: `overloaded` and 429 mean "retry later"."""

    label: str  # in metrics, as text-generation-inference names it, or else LoRAX
    tgi: tuple[int, str, str]  # status, `error_type`, prefix of the message
    openai: tuple[int, str, str]  # status, type, code
    openai_has_prefix: bool = True  # whether the message has TGI's prefix, such as "Template error: "
    is_client_error: bool = False  # whether the client caused it


GENERATION_PREFIX, CANCELLED_PREFIX = "Request failed during generation: ", "Request was cancelled: "
# nginx's status, which no proxy takes for a fault of the server: it does not send the request to another.
CLIENT_CLOSED_REQUEST = 499
ERROR_FORMATS: dict[type[BaseException], ErrorReplyFormats] = {
    InvalidRequest: ErrorReplyFormats("validation", (422, "validation", "Input validation error: "),
                                (400, INVALID_REQUEST_ERROR, ""), openai_has_prefix=False, is_client_error=True),
    ChatTemplateFailed: ErrorReplyFormats("template", (422, "template_error", "Template error: "),
                                    (400, INVALID_REQUEST_ERROR, ""), is_client_error=True),
    InvalidTools: ErrorReplyFormats("validation", (422, "tool_error", "Tool error: "), (400, INVALID_REQUEST_ERROR, ""),
                              openai_has_prefix=False, is_client_error=True),
    MonitorBusy: ErrorReplyFormats("overloaded", (429, "overloaded", ""),
                             (429, "rate_limit_error", "rate_limit_exceeded"), is_client_error=True),
    Overloaded: ErrorReplyFormats("overloaded", (429, "overloaded", "Model is overloaded: "),
                            (429, "rate_limit_error", "rate_limit_exceeded"), is_client_error=True),
    ShuttingDown: ErrorReplyFormats(SHUTTING_DOWN, (503, SHUTTING_DOWN, "Model is not ready: "),
                              (503, SERVER_ERROR, SHUTTING_DOWN)),
    NotReady: ErrorReplyFormats("overloaded", (503, "overloaded", "Model is not ready: "), (503, SERVER_ERROR, "")),
    AdapterNotFound: ErrorReplyFormats("download_adapter", (424, "generation", GENERATION_PREFIX),
                                 (404, INVALID_REQUEST_ERROR, "model_not_found"), openai_has_prefix=False),
    AdapterLoadFailed: ErrorReplyFormats("download_adapter", (424, "generation", GENERATION_PREFIX),
                                   (424, INVALID_REQUEST_ERROR, "adapter_failed"), openai_has_prefix=False),
    EmbeddingFailed: ErrorReplyFormats("embedding_failure", (500, "embedding_failure", "Embedding Failure: "),
                                 (500, SERVER_ERROR, "")),
    ClassificationFailed: ErrorReplyFormats("classification_failure", (500, "classification_failure",
                                                                 "Classification Failure: "), (500, SERVER_ERROR, "")),
    GenerationFailed: ErrorReplyFormats("generation", (424, "generation", GENERATION_PREFIX), (500, SERVER_ERROR, "")),
    TimedOut: ErrorReplyFormats("timeout", (408, "timeout", "Request timed out: "), (408, "timeout_error", ""),
                          is_client_error=True),
    CancelledById: ErrorReplyFormats("dropped", (CLIENT_CLOSED_REQUEST, "cancelled", CANCELLED_PREFIX),
                                     (CLIENT_CLOSED_REQUEST, INVALID_REQUEST_ERROR, "request_cancelled"),
                                     is_client_error=True),
}
UNEXPECTED_ERROR = ErrorReplyFormats("incomplete", (500, "internal", ""), (500, SERVER_ERROR, ""))
# Labels of other errors that clients cause.
CLIENT_ERROR_LABELS: dict[type[BaseException], str] = {
    web.HTTPClientError: "validation", Cancelled: "dropped", ConnectionError: "dropped",
    asyncio.CancelledError: "dropped"}
# For HTTP exceptions of aiohttp.
TGI_TYPES_BY_STATUS = {
    400: "bad_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed",
    409: "conflict", 413: "payload_too_large", 415: "unsupported_media_type", 422: "validation", 424: "adapter_failed"}
OPENAI_TYPES_BY_STATUS = {403: "permission_error"}
ANTHROPIC_TYPES_BY_STATUS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 408: "timeout_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error"}
OPENAI_CODES_BY_STATUS = {401: "invalid_api_key", 405: "method_not_supported", 424: "adapter_failed"}


def find_error_format(kind: type[BaseException]) -> ErrorReplyFormats:
    return next((row for known, row in ERROR_FORMATS.items() if issubclass(kind, known)), UNEXPECTED_ERROR)


def error_label(kind: type[BaseException]) -> str:
    """Return the label `err` of a failure in metrics; an unexpected exception is `incomplete`."""
    return next((label for known, label in CLIENT_ERROR_LABELS.items() if issubclass(kind, known)),
                find_error_format(kind).label)


def is_client_error(kind: type[BaseException]) -> bool:
    return issubclass(kind, tuple(CLIENT_ERROR_LABELS)) or find_error_format(kind).is_client_error


def shorten_message(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]} ..."


@dataclass(frozen=True, slots=True)
class TgiErrorReply:
    """Error response in TGI's format: a status, and a JSON object with `error` and `error_type`."""

    status: int
    error_type: str
    message: str
    retry_after: float | None = None

    @classmethod
    def from_exception(cls, error: Exception) -> Self:
        if isinstance(error, web.HTTPException):
            return cls(error.status, TGI_TYPES_BY_STATUS.get(error.status, "http"),
                       shorten_message(error.text or error.reason))
        error_format = find_error_format(type(error))
        status, error_type, prefix = error_format.tgi
        if error_format is UNEXPECTED_ERROR:
            logger.error("a request failed unexpectedly", exc_info=error)
            return cls(status, error_type, "Internal server error")
        retry_after = getattr(error, "retry_after", 1.0) if error_type in RETRYABLE_TYPES else None
        return cls(status, getattr(error, "error_type", "") or error_type, shorten_message(f"{prefix}{error}"),
                   retry_after)

    def to_json(self) -> str:
        return json.dumps({"error": self.message, "error_type": self.error_type}, separators=(",", ":"))

    def to_response(self) -> web.Response:
        return json_error_response(self.status, self.to_json(), self.retry_after)


@dataclass(frozen=True, slots=True)
class OpenAIErrorReply:
    """Error response in OpenAI's format: a status, and an object `error` with `message`, `type`, `param` and `code`.

    OpenAI's clients act on the status: 400 means that the request is invalid; after 429 and 5xx they retry
    automatically.
    """

    status: int
    message: str
    type: str
    param: str = ""
    code: str = ""
    retry_after: float | None = None

    @classmethod
    def from_exception(cls, error: Exception) -> Self:
        """Return the error to send to the client for any exception."""
        if isinstance(error, web.HTTPException):  # 422 becomes 400, as in OpenAI's API
            text, param = ((error.fault, error.param) if isinstance(error, BodyValidationError)
                           else (error.text or error.reason, ""))
            error_type = INVALID_REQUEST_ERROR if error.status < 500 else SERVER_ERROR
            return cls(400 if error.status == 422 else error.status, shorten_message(text),
                       OPENAI_TYPES_BY_STATUS.get(error.status, error_type), param,
                       OPENAI_CODES_BY_STATUS.get(error.status, ""))
        tgi_reply, error_format = TgiErrorReply.from_exception(error), find_error_format(type(error))
        status, error_type, code = error_format.openai
        code = getattr(error, "code", "") or code
        prefix = PROMPT_TOO_LONG if code == CONTEXT_LENGTH_EXCEEDED else ""
        return cls(status, (tgi_reply.message if error_format.openai_has_prefix
                            else shorten_message(f"{prefix}{error}")),
                   error_type, getattr(error, "param", "") if status in {400, 404} else "", code,
                   tgi_reply.retry_after)

    def to_json(self) -> str:
        """Return the body as one line of JSON; empty fields are null."""
        return json.dumps({"error": {"message": self.message, "type": self.type, "param": self.param or None,
                                     "code": self.code or None}}, separators=(",", ":"))

    def to_response(self) -> web.Response:
        return json_error_response(self.status, self.to_json(), self.retry_after)


@dataclass(frozen=True, slots=True)
class AnthropicErrorReply:
    """Error response in Anthropic's format. Its clients act on the status as OpenAI's do, and read the type."""

    status: int
    type: str
    message: str
    retry_after: float | None = None

    @classmethod
    def from_exception(cls, error: Exception) -> Self:
        reply = OpenAIErrorReply.from_exception(error)
        error_type = ANTHROPIC_TYPES_BY_STATUS.get(reply.status, "invalid_request_error" if reply.status < 500
                                                   else "api_error")
        if reply.code == SHUTTING_DOWN:  # not a matter of load
            error_type = "api_error"
        return cls(reply.status, error_type, reply.message, reply.retry_after)

    def to_json(self) -> str:
        return json.dumps({"type": "error", "error": {"type": self.type, "message": self.message}},
                          separators=(",", ":"))

    def to_response(self) -> web.Response:
        return json_error_response(self.status, self.to_json(), self.retry_after)


@dataclass(frozen=True, slots=True)
class OllamaErrorReply:
    """Error response in Ollama's format: a status, and an object with `error`."""

    status: int
    message: str
    retry_after: float | None = None

    @classmethod
    def from_exception(cls, error: Exception) -> Self:
        reply = OpenAIErrorReply.from_exception(error)
        return cls(reply.status, reply.message, reply.retry_after)

    def to_json(self) -> str:
        return json.dumps({"error": self.message}, separators=(",", ":"))

    def to_response(self) -> web.Response:
        return json_error_response(self.status, self.to_json(), self.retry_after)


ErrorReply = TgiErrorReply | OpenAIErrorReply | AnthropicErrorReply | OllamaErrorReply
# By the beginning of a route's path; the first that fits counts.
ERROR_REPLY_TYPES: Mapping[str, type[ErrorReply]] = {
    "/v1/messages": AnthropicErrorReply, "/v1/responses": OpenAIErrorReply, "/api/": OllamaErrorReply}


def find_error_reply_type(path: str, compat: str) -> type[ErrorReply]:
    """Return the format of errors of the route at `path`."""
    for prefix, reply_type in ERROR_REPLY_TYPES.items():
        if path.startswith(prefix):
            return reply_type
    is_openai = compat not in COMPATS_WITH_OWN_ERRORS and (path == "/v1" or path.startswith("/v1/"))
    return OpenAIErrorReply if is_openai else TgiErrorReply


def has_openai_error_format(path: str, compat: str) -> bool:
    return find_error_reply_type(path, compat) is OpenAIErrorReply


def json_error_response(status: int, body: str, retry_after: float | None) -> web.Response:
    """Return a response with a JSON body. `retry_after` is in seconds; the header Retry-After has it rounded up, and
    at least 1."""
    response = web.Response(status=status, body=body.encode(), content_type="application/json")
    if retry_after is not None:
        response.headers["Retry-After"] = str(max(ceil(retry_after), 1))
    return response
