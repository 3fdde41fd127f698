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

The dialects give each a status and a shape; nobody below them knows either.
"""


class RequestError(Exception):
    pass


class InvalidRequest(RequestError, ValueError):
    def __init__(self, message: str, kind: str = "") -> None:
        """`kind` is for what a dialect has a word of its own."""
        super().__init__(message)
        self.kind = kind


class ToolsFailed(RequestError):
    pass


class TemplateFailed(RequestError):
    pass


class Overloaded(RequestError):
    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class AdapterMissing(RequestError):
    pass


class AdapterFailed(RequestError):
    pass


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
