"""Errors in OpenAI's format: a status, and an object `error` with `message`, `type`, `param` and `code`.

All routes below /v1 use it, except with `--compat tgi` and `--compat lorax`. OpenAI's clients act on the status: 400
means that the request is invalid; after 429 and 5xx they retry automatically.
"""

import json
from dataclasses import dataclass
from typing import Self

from aiohttp import web

from router.errors import (
    AdapterFailed,
    AdapterMissing,
    GenerationFailed,
    InvalidRequest,
    NotReady,
    Overloaded,
    TemplateFailed,
    TimedOut,
    ToolsFailed,
)
from router.http.transport.body import WrongShape
from router.http.transport.errors import Told, error_response, shortened

INVALID, SERVER = "invalid_request_error", "server_error"
# Status, type and code.
KINDS: dict[type[Exception], tuple[int, str, str]] = {
    InvalidRequest: (400, INVALID, ""),
    TemplateFailed: (400, INVALID, ""),
    ToolsFailed: (400, INVALID, ""),
    AdapterMissing: (404, INVALID, "model_not_found"),
    AdapterFailed: (424, INVALID, "adapter_failed"),
    TimedOut: (408, "timeout_error", ""),
    Overloaded: (429, "rate_limit_error", "rate_limit_exceeded"),
    NotReady: (503, SERVER, ""),
    GenerationFailed: (500, SERVER, ""),
}
# Errors whose message is sent without a prefix; other errors of KINDS get TGI's, such as "Template error: ".
PLAIN = (InvalidRequest, ToolsFailed, AdapterMissing, AdapterFailed)
TYPES_BY_STATUS = {403: "permission_error"}
CODES_BY_STATUS = {401: "invalid_api_key", 405: "method_not_supported", 424: "adapter_failed"}
OTHER_SHAPES = ("tgi", "lorax")  # values of --compat with an error format of their own below /v1


def has_api_errors(path: str, compat: str) -> bool:
    """Whether errors of the route at `path` have OpenAI's shape."""
    return compat not in OTHER_SHAPES and (path == "/v1" or path.startswith("/v1/"))


@dataclass(frozen=True, slots=True)
class ApiError:
    status: int
    message: str
    type: str
    param: str = ""
    code: str = ""
    retry_after: float | None = None

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Return the error to send to the client for any exception."""
        if isinstance(error, web.HTTPException):
            return cls.of_http(error)
        told = Told.of(error)
        status, kind, code = next((found for known, found in KINDS.items() if isinstance(error, known)),
                                  (500, SERVER, ""))
        return cls(status, shortened(str(error)) if isinstance(error, PLAIN) else told.text, kind,
                   getattr(error, "param", "") if status in {400, 404} else "", getattr(error, "code", "") or code,
                   told.retry_after)

    @classmethod
    def of_http(cls, error: web.HTTPException) -> Self:
        """Return the error for an HTTP exception of aiohttp; 422 becomes 400, as in OpenAI's API."""
        text, param = error.text or error.reason, ""
        if isinstance(error, WrongShape):
            text, param = error.what, error.param
        return cls(400 if error.status == 422 else error.status, shortened(text),
                   TYPES_BY_STATUS.get(error.status, INVALID if error.status < 500 else SERVER), param,
                   CODES_BY_STATUS.get(error.status, ""))

    def json(self) -> str:
        """Return the body as one line of JSON; empty fields are null."""
        return json.dumps({"error": {"message": self.message, "type": self.type, "param": self.param or None,
                                     "code": self.code or None}}, separators=(",", ":"))

    def response(self) -> web.Response:
        return error_response(self.status, self.json(), self.retry_after)
