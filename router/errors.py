"""Errors of requests, as a tree.

    RequestError
    ├── InvalidRequest      the request breaks a rule; the message names the field, the limit and the value
    ├── InvalidTools        the tools or the tool choice of the request are invalid
    ├── ChatTemplateFailed  the model has no chat template, or its template does not accept these messages
    ├── Overloaded          rejected before it was queued; the client may try again after `retry_after` seconds
    ├── AdapterNotFound     there is no adapter of this name, or none that this client may use
    ├── AdapterLoadFailed   the adapter exists and cannot be fetched or loaded, or is invalid
    ├── NotReady            the shards are not connected, or the server is starting or stopping
    ├── GenerationFailed    the request was accepted and failed on a shard
    │   ├── EmbeddingFailed        an embedding request failed on a shard
    │   └── ClassificationFailed   a classification request failed on a shard
    ├── TimedOut            the timeout that its client set has passed before the first token
    └── Cancelled           the client left, or was too slow to read

`RetryableStartupError` is not part of the tree: it is raised while the server starts.

Only the HTTP dialects map these errors to status codes and bodies. A message about a field of the request begins with
the field's name in backticks.
"""

import re

FIELD_PATTERN = re.compile(r"`(\w+)[^`]*`")  # also `messages.0.content`, of which the first name is the field


class RequestError(Exception):
    def __init__(self, message: str, *, param: str = "") -> None:
        """`param` is the field of the request that is wrong, by default the one that the message begins with."""
        super().__init__(message)
        self._param = param

    @property
    def param(self) -> str:
        """The field of the request that is wrong; empty if it is none or not known."""
        found = FIELD_PATTERN.match(str(self))
        return self._param or (found[1] if found else "")


class InvalidRequest(RequestError, ValueError):
    def __init__(self, message: str, error_type: str = "", *, param: str = "", code: str = "") -> None:
        """`error_type` is TGI's `error_type` and `code` OpenAI's `code`, for errors that have one in these APIs."""
        super().__init__(message, param=param)
        self.error_type = error_type
        self.code = code


class InvalidTools(RequestError):
    pass


class ChatTemplateFailed(RequestError):
    @property
    def param(self) -> str:
        return "messages"


class Overloaded(RequestError):
    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class AdapterNotFound(RequestError):
    pass


class AdapterLoadFailed(RequestError):
    def __init__(self, message: str, *, is_temporary: bool = False) -> None:
        """`is_temporary`: another try may succeed, as the adapter itself is not known to be invalid."""
        super().__init__(message)
        self.is_temporary = is_temporary


class NotReady(RequestError):
    pass


class GenerationFailed(RequestError):
    pass


class EmbeddingFailed(GenerationFailed):
    pass


class ClassificationFailed(GenerationFailed):
    pass


class TimedOut(RequestError):
    pass


class Cancelled(RequestError):
    pass


class RetryableStartupError(ValueError):
    """The server cannot start now, but may start later with the same settings, model and machine."""
