"""Errors of requests, as a tree. Only the HTTP dialects map them to status codes and bodies."""

import re

SHUTDOWN_REASON = "the server is shutting down"
FIELD_PATTERN = re.compile(r"`(\w+)[^`]*`")  # also `messages.0.content`, of which the first name is the field


class RequestError(Exception):
    """Error of a request. A message about a field of the request begins with the field's name in backticks."""

    def __init__(self, message: str, *, param: str = "") -> None:
        """`param` is the field of the request that is wrong, by default the one that the message begins with; empty if
        it is none or not known."""
        super().__init__(message)
        found = FIELD_PATTERN.match(message)
        self.param = param or (found[1] if found else "")


class InvalidRequest(RequestError, ValueError):
    """The request breaks a rule; the message names the field, the limit and the value."""

    def __init__(self, message: str, error_type: str = "", *, param: str = "", code: str = "") -> None:
        """`error_type` is TGI's `error_type` and `code` OpenAI's `code`, for errors that have one in these APIs."""
        super().__init__(message, param=param)
        self.error_type = error_type
        self.code = code


class InvalidTools(RequestError):
    """The tools or the tool choice of the request are invalid."""


class ChatTemplateFailed(RequestError):
    """The model has no chat template, or its template does not accept these messages."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="messages")


class Overloaded(RequestError):
    """Rejected before it was queued; the client may try again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class MonitorBusy(Overloaded):
    """The engine is watched, or simulated, by as many clients as may at once."""


class AdapterNotFound(RequestError):
    """There is no adapter of this name, or none that this client may use."""


class AdapterLoadFailed(RequestError):
    """The adapter exists and cannot be fetched or loaded, or is invalid."""

    def __init__(self, message: str, *, is_temporary: bool = False) -> None:
        """`is_temporary`: another try may succeed, as the adapter itself is not known to be invalid."""
        super().__init__(message)
        self.is_temporary = is_temporary


class NotReady(RequestError):
    """The shards are not connected, or the server is starting or stopping."""


class ShuttingDown(NotReady):
    """The server is shutting down: another try here cannot succeed before it is started again."""


def make_not_ready_error(reason: str) -> NotReady:
    return (ShuttingDown if reason == SHUTDOWN_REASON else NotReady)(reason)


class GenerationFailed(RequestError):
    """The request was accepted and failed on a shard."""


class EmbeddingFailed(GenerationFailed):
    """An embedding request failed on a shard."""


class ClassificationFailed(GenerationFailed):
    """A classification request failed on a shard."""


class TimedOut(RequestError):
    """The timeout that its client set has passed before the first token."""


class Cancelled(RequestError):
    """The client did not read its stream for too long. (A client that leaves ends its handler instead.)"""


class CancelledById(RequestError):
    """Somebody with the request's key cancelled it by its id."""


class RetryableStartupError(ValueError):
    """The server cannot start now, but may start later with the same settings, model and machine."""
