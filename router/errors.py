"""Everything that can go wrong for one client, as a tree.

    RequestError
    ├── InvalidRequest       the request breaks a rule; the message names the field, the limit and the value
    ├── ToolsFailed          the tools that are offered, or how, make no sense
    ├── TemplateFailed       the model has no chat template, or its template makes no prompt of these messages
    ├── Overloaded           refused at the door; `retry_after` seconds from now is worth another try
    ├── AdapterMissing       there is no adapter of this name, or none that this client may use
    ├── AdapterFailed        there is one, and it cannot be fetched, or is not sound
    ├── NotReady             the shards are not there (yet, or any more)
    ├── GenerationFailed     the request was accepted and failed on a shard
    │   ├── EmbeddingFailed        so for an embedding
    │   └── ClassificationFailed   so for labels
    ├── TimedOut             the time that its client gave it ran out before it had a token
    └── Cancelled            the client left, or was too slow to read

`CannotStartNow` is beside the tree: it is for whoever starts the server.

The dialects give each a status and a shape; nobody below them knows either. A message about a field of the request
begins with its name in backticks.
"""

import re

FIELD = re.compile(r"`(\w+)[^`]*`")  # also `messages.0.content`, of which the first name is the field


class RequestError(Exception):
    def __init__(self, message: str, *, param: str = "") -> None:
        """`param` is the field of the request that is wrong, by default the one that the message begins with."""
        super().__init__(message)
        self._param = param

    @property
    def param(self) -> str:
        """The field of the request that is wrong; empty if it is none or not known."""
        found = FIELD.match(str(self))
        return self._param or (found[1] if found else "")


class InvalidRequest(RequestError, ValueError):
    def __init__(self, message: str, kind: str = "", *, param: str = "", code: str = "") -> None:
        """`kind` is TGI's `error_type` and `code` is OpenAI's, where they have a word of their own."""
        super().__init__(message, param=param)
        self.kind = kind
        self.code = code


class ToolsFailed(RequestError):
    pass


class TemplateFailed(RequestError):
    @property
    def param(self) -> str:
        return "messages"


class Overloaded(RequestError):
    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class AdapterMissing(RequestError):
    pass


class AdapterFailed(RequestError):
    def __init__(self, message: str, *, is_temporary: bool = False) -> None:
        """`is_temporary`: nothing is known to be wrong with it, and another try may bring it."""
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


class CannotStartNow(ValueError):
    """The server cannot start at the moment; another time it may, with the same settings, model and machine."""
