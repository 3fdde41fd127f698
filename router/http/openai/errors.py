"""Errors in OpenAI's format: a status, and an object `error` with `message`, `type`, `param` and `code`.

All routes below /v1 use it, except with `--compat tgi` and `--compat lorax`. OpenAI's clients act on the status: 400
means that the request is invalid; after 429 and 5xx they retry automatically.
"""

import json
from dataclasses import dataclass
from typing import Self

from aiohttp import web

from router.errors import (
    AdapterLoadFailed,
    AdapterNotFound,
    ChatTemplateFailed,
    GenerationFailed,
    InvalidRequest,
    InvalidTools,
    NotReady,
    Overloaded,
    TimedOut,
)
from router.http.tgi.errors import TgiErrorReply, error_response, shorten_message
from router.http.transport.body import BodyValidationError

INVALID_REQUEST_ERROR, SERVER_ERROR = "invalid_request_error", "server_error"
# Status, type and code.
ERRORS_BY_EXCEPTION: dict[type[Exception], tuple[int, str, str]] = {
    InvalidRequest: (400, INVALID_REQUEST_ERROR, ""),
    ChatTemplateFailed: (400, INVALID_REQUEST_ERROR, ""),
    InvalidTools: (400, INVALID_REQUEST_ERROR, ""),
    AdapterNotFound: (404, INVALID_REQUEST_ERROR, "model_not_found"),
    AdapterLoadFailed: (424, INVALID_REQUEST_ERROR, "adapter_failed"),
    TimedOut: (408, "timeout_error", ""),
    Overloaded: (429, "rate_limit_error", "rate_limit_exceeded"),
    NotReady: (503, SERVER_ERROR, ""),
    GenerationFailed: (500, SERVER_ERROR, ""),
}
# Errors whose message is sent without a prefix; the others get TGI's, such as "Template error: ".
ERRORS_WITHOUT_PREFIX = (InvalidRequest, InvalidTools, AdapterNotFound, AdapterLoadFailed)
TYPES_BY_STATUS = {403: "permission_error"}
CODES_BY_STATUS = {401: "invalid_api_key", 405: "method_not_supported", 424: "adapter_failed"}
COMPATS_WITH_OWN_ERRORS = ("tgi", "lorax")  # values of --compat with an error format of their own below /v1


def has_openai_error_format(path: str, compat: str) -> bool:
    """Whether errors of the route at `path` have OpenAI's shape."""
    return compat not in COMPATS_WITH_OWN_ERRORS and (path == "/v1" or path.startswith("/v1/"))


@dataclass(frozen=True, slots=True)
class OpenAIErrorReply:
    """Error response in OpenAI's format."""

    status: int
    message: str
    type: str
    param: str = ""
    code: str = ""
    retry_after: float | None = None

    @classmethod
    def from_exception(cls, error: Exception) -> Self:
        """Return the error to send to the client for any exception."""
        if isinstance(error, web.HTTPException):
            return cls.from_http_exception(error)
        tgi_reply = TgiErrorReply.from_exception(error)
        status, error_type, code = next((found for known, found in ERRORS_BY_EXCEPTION.items()
                                         if isinstance(error, known)), (500, SERVER_ERROR, ""))
        return cls(status,
                   shorten_message(str(error)) if isinstance(error, ERRORS_WITHOUT_PREFIX) else tgi_reply.message,
                   error_type, getattr(error, "param", "") if status in {400, 404} else "",
                   getattr(error, "code", "") or code, tgi_reply.retry_after)

    @classmethod
    def from_http_exception(cls, error: web.HTTPException) -> Self:
        """Return the error for an HTTP exception of aiohttp; 422 becomes 400, as in OpenAI's API."""
        text, param = error.text or error.reason, ""
        if isinstance(error, BodyValidationError):
            text, param = error.fault, error.param
        return cls(400 if error.status == 422 else error.status, shorten_message(text),
                   TYPES_BY_STATUS.get(error.status, INVALID_REQUEST_ERROR if error.status < 500 else SERVER_ERROR),
                   param, CODES_BY_STATUS.get(error.status, ""))

    def to_json(self) -> str:
        """Return the body as one line of JSON; empty fields are null."""
        return json.dumps({"error": {"message": self.message, "type": self.type, "param": self.param or None,
                                     "code": self.code or None}}, separators=(",", ":"))

    def to_response(self) -> web.Response:
        return error_response(self.status, self.to_json(), self.retry_after)
