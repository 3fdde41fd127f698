"""Queue of one request's events, between the engine and one client.

The engine puts events, the HTTP dialect takes them; both run on the same event loop.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from router.errors import Cancelled, RequestError
from router.pooling_output import PoolingOutput, TokenClassificationOutput
from router.request import FinishReason, Request
from router.scheduler.request_timeline import RequestTimeline

# Approximate number of bytes that rendering adds to the text; used only to bound what is kept for a slow reader.
TOKEN_OVERHEAD_BYTES = 128
TOP_TOKEN_OVERHEAD_BYTES = 64
PROMPT_LOGPROB_OVERHEAD_BYTES = 64
POOLING_VALUE_BYTES = 16  # a value of an embedding, or a label


@dataclass(slots=True)
class TopToken:
    id: int
    text: str
    logprob: float
    special: bool


@dataclass(slots=True)
class TokenEvent:
    """A generated token with its text and logprob."""

    id: int
    text: str  # "" while a character is incomplete
    logprob: float
    special: bool
    top_tokens: tuple[TopToken, ...] = ()


@dataclass(slots=True)
class PromptLogprobsEvent:
    """Logprobs of the prompt's tokens from index `start` on, for requests that asked."""

    start: int
    logprobs: tuple[float, ...]


@dataclass(slots=True)
class FinishedEvent:
    """End of a text. Put right after the last token, so that both are taken at once.

    A sequence whose time runs out while it waits ends without another token.
    """

    finish_reason: FinishReason
    text: str  # whole visible text: without special tokens, up to and including a stop string
    num_tokens: int
    timeline: RequestTimeline


@dataclass(slots=True)
class PoolingEvent:
    """Result and end of an embedding or classification request."""

    output: PoolingOutput
    timeline: RequestTimeline
    num_tokens: ClassVar[int] = 0  # generated tokens

    @property
    def num_bytes(self) -> int:
        return POOLING_VALUE_BYTES * len(self.output.label_ids if isinstance(self.output, TokenClassificationOutput)
                                         else self.output)


@dataclass(slots=True)
class FailedEvent:
    """The error that ends a request's stream."""

    error: RequestError


StreamEvent = TokenEvent | PromptLogprobsEvent | FinishedEvent | PoolingEvent | FailedEvent


class RequestStream:
    """Queue of one request's events.

    `max_bytes` is the size in bytes above which the reader counts as slow: `on_full` is called when it is exceeded, and
    `on_drained` when the reader takes events again. `on_disconnect` is called when the client leaves before the end.
    """

    __slots__ = ("_has_ended", "_is_closed", "_is_full", "_max_bytes", "_num_bytes", "_on_disconnect", "_on_drained",
                 "_on_event", "_on_full", "_queued_events", "abort_connection", "failure", "request")

    def __init__(self, request: Request, max_bytes: int, on_full: Callable[[], None],
                 on_drained: Callable[[], None], on_disconnect: Callable[[], None]) -> None:
        self.request = request
        # Closes the connection at once: a reader that is blocked in a write would not take the event.
        self.abort_connection: Callable[[], None] | None = None
        self.failure: RequestError | None = None  # error that ended the stream, if one did
        self._max_bytes = max_bytes
        self._on_full = on_full
        self._on_drained = on_drained
        self._on_disconnect = on_disconnect
        self._queued_events: list[StreamEvent] = []
        self._on_event: Callable[[], object] | None = None
        self._num_bytes = 0
        self._is_full = self._has_ended = self._is_closed = False

    def put(self, event: StreamEvent) -> None:
        """Add an event; after the client has left it is dropped."""
        if self._is_closed:
            return
        assert not self._has_ended, "an event after the last one"
        self._queued_events.append(event)
        if type(event) is TokenEvent:
            self._num_bytes += TOKEN_OVERHEAD_BYTES + len(event.text) + TOP_TOKEN_OVERHEAD_BYTES * len(event.top_tokens)
        else:
            self._handle_non_token_event(event)
        if self._on_event is not None and len(self._queued_events) == 1:
            self._on_event()
        if self._num_bytes > self._max_bytes and not self._is_full and not self._has_ended:
            self._is_full = True
            self._on_full()

    def take_events(self) -> list[StreamEvent]:
        """Remove and return all queued events."""
        events, self._queued_events = self._queued_events, []
        self._num_bytes = 0
        if self._is_full and not self._has_ended:  # after the end there is no sequence to resume
            self._is_full = False
            self._on_drained()
        return events

    def set_event_callback(self, on_event: Callable[[], object]) -> None:
        """Have `put` call `on_event` when it adds an event to an empty queue."""
        self._on_event = on_event

    async def wait_for_events(self) -> list[StreamEvent]:
        """Wait for at least one event, then remove and return all."""
        if not self._queued_events:
            arrived = asyncio.Event()
            self.set_event_callback(arrived.set)
            await arrived.wait()
        return self.take_events()

    def close(self) -> None:
        """Close the reader's side: the client has left or taken everything. Further calls do nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._on_event = self.abort_connection = None  # break the reference cycle with the reader
        self._queued_events.clear()
        if not self._has_ended:
            self._on_disconnect()

    @property
    def num_bytes(self) -> int:
        """Approximate number of bytes that the queued events take when written."""
        return self._num_bytes

    def _handle_non_token_event(self, event: StreamEvent) -> None:
        if isinstance(event, PromptLogprobsEvent):
            self._num_bytes += PROMPT_LOGPROB_OVERHEAD_BYTES * len(event.logprobs)
            return
        self._has_ended = True
        if isinstance(event, FinishedEvent):
            self._num_bytes += TOKEN_OVERHEAD_BYTES + len(event.text)
        elif isinstance(event, PoolingEvent):
            self._num_bytes += event.num_bytes
        elif isinstance(event, FailedEvent):
            self.failure = event.error
            if isinstance(event.error, Cancelled) and self.abort_connection is not None:
                self.abort_connection()
