"""Queue of one request's events, between the engine and one client.

The engine puts events, the HTTP dialect takes them; both run on the same event loop.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from router.errors import Cancelled, RequestError
from router.request import FinishReason, Request
from router.scheduler.plan import Labelling, Told
from router.scheduler.timeline import Story

# Approximate number of bytes that rendering adds to the text; used only to bound what is kept for a slow reader.
TOKEN_BYTES = 128
TOP_TOKEN_BYTES = 64
PROMPT_LOGPROB_BYTES = 64
TOLD_BYTES = 16  # a value of an embedding, or a label


@dataclass(slots=True)
class TopToken:
    id: int
    text: str
    logprob: float
    special: bool


@dataclass(slots=True)
class TokenEvent:
    id: int
    text: str  # "" while a character is incomplete
    logprob: float
    special: bool
    top: tuple[TopToken, ...] = ()


@dataclass(slots=True)
class PromptEvent:
    """Logprobs of the prompt's tokens from index `start` on, for requests that asked."""

    start: int
    logprobs: tuple[float, ...]


@dataclass(slots=True)
class FinishedEvent:
    """End of a text. Put right after the last token, so that both are taken at once.

    A sequence whose time runs out while it waits ends without another token.
    """

    reason: FinishReason
    text: str  # whole visible text: without special tokens, up to and including a stop string
    num_tokens: int
    story: Story


@dataclass(slots=True)
class ToldEvent:
    """Result and end of an embedding or classification request."""

    told: Told
    story: Story
    num_tokens: ClassVar[int] = 0  # generated tokens

    @property
    def size(self) -> int:
        return TOLD_BYTES * len(self.told.labels if isinstance(self.told, Labelling) else self.told)


@dataclass(slots=True)
class FailedEvent:
    error: RequestError


Event = TokenEvent | PromptEvent | FinishedEvent | ToldEvent | FailedEvent


class Stream:
    """Queue of one request's events.

    `limit` is the size in bytes above which the reader counts as slow: `on_full` is called when it is exceeded, and
    `on_drained` when the reader takes events again. `on_leave` is called when the client leaves before the end.
    """

    __slots__ = ("_ended", "_full", "_left", "_limit", "_on_drained", "_on_full", "_on_leave", "_size", "_waiting",
                 "_wake", "cut", "failure", "request")

    def __init__(self, request: Request, limit: int, on_full: Callable[[], None],
                 on_drained: Callable[[], None], on_leave: Callable[[], None]) -> None:
        self.request = request
        # Closes the connection at once: a reader that is blocked in a write would not take the event.
        self.cut: Callable[[], None] | None = None
        self.failure: RequestError | None = None  # error that ended the stream, if one did
        self._limit = limit
        self._on_full = on_full
        self._on_drained = on_drained
        self._on_leave = on_leave
        self._waiting: list[Event] = []
        self._wake: Callable[[], object] | None = None
        self._size = 0
        self._full = self._ended = self._left = False

    def put(self, event: Event) -> None:
        """Add an event; after the client has left it is dropped."""
        if self._left:
            return
        assert not self._ended, "an event after the last one"
        self._waiting.append(event)
        if type(event) is TokenEvent:
            self._size += TOKEN_BYTES + len(event.text) + TOP_TOKEN_BYTES * len(event.top)
        else:
            self._put_rare(event)
        if self._wake is not None and len(self._waiting) == 1:
            self._wake()
        if self._size > self._limit and not self._full and not self._ended:
            self._full = True
            self._on_full()

    def take(self) -> list[Event]:
        """Remove and return all queued events."""
        taken, self._waiting = self._waiting, []
        self._size = 0
        if self._full and not self._ended:  # after the end there is no sequence to resume
            self._full = False
            self._on_drained()
        return taken

    def listen(self, wake: Callable[[], object]) -> None:
        """Have `put` call `wake` when it adds an event to an empty queue."""
        self._wake = wake

    async def events(self) -> list[Event]:
        """Wait for at least one event, then remove and return all."""
        if not self._waiting:
            arrived = asyncio.Event()
            self.listen(arrived.set)
            await arrived.wait()
        return self.take()

    def close(self) -> None:
        """Close the reader's side: the client has left or taken everything. Further calls do nothing."""
        if self._left:
            return
        self._left = True
        self._wake = self.cut = None  # break the reference cycle with the reader
        self._waiting.clear()
        if not self._ended:
            self._on_leave()

    @property
    def size(self) -> int:
        """Approximate number of bytes that the queued events take when written."""
        return self._size

    def _put_rare(self, event: Event) -> None:
        if isinstance(event, PromptEvent):
            self._size += PROMPT_LOGPROB_BYTES * len(event.logprobs)
            return
        self._ended = True
        if isinstance(event, FinishedEvent):
            self._size += TOKEN_BYTES + len(event.text)
        elif isinstance(event, ToldEvent):
            self._size += event.size
        elif isinstance(event, FailedEvent):
            self.failure = event.error
            if isinstance(event.error, Cancelled) and self.cut is not None:
                self.cut()
