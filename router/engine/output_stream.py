"""Output of one request: the events of its stream, which the engine puts and the HTTP dialect takes on the same event
loop, and what makes them of tokens."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from router.errors import Cancelled, RequestError
from router.request import FinishReason, PoolingOutput, Request, TokenClassificationOutput
from router.scheduler.sequence import RequestTimeline
from router.scheduler.shard_messages import PromptLogprobs, StepResultRow
from router.scheduler.step import find_finish_point
from router.telemetry.server_metrics import RequestRecord
from router.text.tokenizer import ResumedText, Tokenizer

# Approximate number of bytes that rendering adds to the text; used only to bound what is kept for a slow reader.
TOKEN_OVERHEAD_BYTES = 128
TOP_TOKEN_OVERHEAD_BYTES = 64
PROMPT_LOGPROB_OVERHEAD_BYTES = 64
POOLING_VALUE_BYTES = 16  # a value of an embedding, or a label


@dataclass(slots=True)
class TopToken:
    id: int
    text: str  # of a generated token: "" while a character is incomplete
    logprob: float
    special: bool


@dataclass(slots=True)
class TokenEvent(TopToken):
    top_tokens: tuple[TopToken, ...] = ()


@dataclass(slots=True)
class PromptLogprobsEvent:
    """Logprobs of the prompt's tokens from index `start` on, for requests that asked."""

    start: int
    logprobs: tuple[float, ...]
    # of each: the best candidates in its place, by id, best first; empty unless they were asked for
    top_logprobs: Sequence[Sequence[tuple[int, float]]] = ()


@dataclass(slots=True)
class FinishedEvent:
    """End of a text. Put right after the last token, so that both are taken at once; a sequence whose time runs out
    while it waits ends without another token."""

    finish_reason: FinishReason
    text: str  # whole visible text: without special tokens, up to and including a stop string
    num_tokens: int
    timeline: RequestTimeline
    is_stopped: bool = False  # a stop string or stop token of the request ends it, also where the length would have


@dataclass(slots=True)
class PoolingEvent:
    """Result and end of an embedding or classification request."""

    output: PoolingOutput
    timeline: RequestTimeline
    num_tokens: ClassVar[int] = 0  # generated tokens


@dataclass(slots=True)
class FailedEvent:
    """The error that ends a request's stream."""

    error: RequestError


StreamEvent = TokenEvent | PromptLogprobsEvent | FinishedEvent | PoolingEvent | FailedEvent


@dataclass(slots=True, eq=False)
class RequestStream:
    """Queue of one request's events. A reader for whom more than `max_bytes` are kept counts as slow: then `on_full` is
    called, and `on_drained` when it takes events again; `on_disconnect` when the client leaves before the end."""

    request: Request
    max_bytes: int
    on_full: Callable[[], None]
    on_drained: Callable[[], None]
    on_disconnect: Callable[[], None]
    # Closes the connection at once: a reader that is blocked in a write would not take the event.
    abort_connection: Callable[[], None] | None = None
    failure: RequestError | None = None  # error that ended the stream, if one did
    on_event: Callable[[], object] | None = None  # called when an event is added to an empty queue
    num_bytes: int = 0  # approximate number of bytes that the queued events take when written
    resumed_text: ResumedText | None = None  # what the client has of the output, and no event brings
    _queued_events: list[StreamEvent] = field(default_factory=list)
    _is_full: bool = False
    _has_ended: bool = False
    _is_closed: bool = False

    def put(self, event: StreamEvent) -> None:
        self.put_all([event])

    def put_all(self, events: Sequence[StreamEvent]) -> None:
        """Add events; after the client has left they are dropped."""
        if self._is_closed:
            return
        if self._has_ended:
            raise RuntimeError("an event after the last one")
        was_empty = not self._queued_events
        self._queued_events += events
        for event in events:
            if type(event) is TokenEvent:
                self.num_bytes += (TOKEN_OVERHEAD_BYTES + len(event.text)
                                   + TOP_TOKEN_OVERHEAD_BYTES * len(event.top_tokens))
            elif isinstance(event, PromptLogprobsEvent):
                self.num_bytes += (PROMPT_LOGPROB_OVERHEAD_BYTES * len(event.logprobs)
                                   + TOP_TOKEN_OVERHEAD_BYTES * sum(map(len, event.top_logprobs)))
            else:
                self._put_last(event)
        if was_empty and self.on_event is not None:
            self.on_event()
        if self.num_bytes > self.max_bytes and not self._is_full and not self._has_ended:
            self._is_full = True
            self.on_full()

    def _put_last(self, event: StreamEvent) -> None:
        self._has_ended = True
        if isinstance(event, FinishedEvent):
            self.num_bytes += TOKEN_OVERHEAD_BYTES + len(event.text)
        elif isinstance(event, PoolingEvent):
            self.num_bytes += POOLING_VALUE_BYTES * len(
                event.output.label_ids if isinstance(event.output, TokenClassificationOutput) else event.output)
        elif isinstance(event, FailedEvent):
            self.failure = event.error
            if isinstance(event.error, Cancelled) and self.abort_connection is not None:
                self.abort_connection()

    def take_events(self) -> list[StreamEvent]:
        """Remove and return all queued events."""
        events, self._queued_events = self._queued_events, []
        self.num_bytes = 0
        if self._is_full and not self._has_ended:  # after the end there is no sequence to resume
            self._is_full = False
            self.on_drained()
        return events

    async def wait_for_events(self) -> list[StreamEvent]:
        """Wait for at least one event, then remove and return all."""
        if not self._queued_events:
            arrived = asyncio.Event()
            self.on_event = arrived.set
            await arrived.wait()
        return self.take_events()

    def make_resumed_events(self) -> list[TokenEvent]:
        """Return the events that brought the resumed text, without logprobs: a renderer that has rendered them
        continues where that of the other stream stopped."""
        resumed = self.resumed_text
        return [] if resumed is None else [
            TokenEvent(token, text, 0.0, is_special) for token, text, is_special in zip(
                resumed.tokens, resumed.token_texts, resumed.special_flags, strict=True)]

    async def take_prompt_logprobs(self) -> list[PromptLogprobsEvent]:
        """Wait until the prompt is computed, then remove and return the events of its logprobs; others stay queued."""
        found: list[PromptLogprobsEvent] = []
        others: list[StreamEvent] = []
        while not others:
            for event in await self.wait_for_events():
                if isinstance(event, PromptLogprobsEvent):
                    found.append(event)
                else:
                    others.append(event)
        self._queued_events[:0] = others
        return found

    def close(self) -> None:
        """Close the reader's side: the client has left or taken everything. Further calls do nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self.on_event = self.abort_connection = None  # break the reference cycle with the reader
        self._queued_events.clear()
        if not self._has_ended:
            self.on_disconnect()


class StopStringMatcher:
    """Matcher of one request's stop strings; a match may begin in one piece of text and end in another."""

    __slots__ = ("_length", "_overlap", "_strings", "_tail")

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._strings = strings
        self._overlap = max(map(len, strings), default=1) - 1  # longest part of a stop string in the pieces before
        self._tail = ""
        self._length = 0

    def skip(self, piece: str) -> None:
        """Take a piece of which no part belongs to a stop string."""
        self._length += len(piece)

    def find_match_end(self, piece: str) -> int | None:
        """Return the end of the stop string that is complete first, as an offset in the whole text; None if none is.
        Must not be called again after a match."""
        window = self._tail + piece
        start = self._length - len(self._tail)
        self._length += len(piece)
        self._tail = window[-self._overlap:] if self._overlap else ""
        ends = [start_index + len(string) for string in self._strings if (start_index := window.find(string)) >= 0]
        return start + min(ends) if ends else None


class OutputBuilder:
    """Output state of one request, from token ids to events. A row of an answer is first detokenized, and cut where the
    request ends; the scheduler learns of stop strings and cuts it at the same token. Then it is delivered."""

    def __init__(self, request: Request, stream: RequestStream, tokenizer: Tokenizer, record: RequestRecord,
                 resumed_text: ResumedText | None = None) -> None:
        """`resumed_text` is that of the request's resumed tokens, if it has any."""
        self.request = request
        self.stream = stream
        self.record = record
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.create_detokenizer(request.prompt)
        self._stop_strings = StopStringMatcher(request.stop_strings) if request.stop_strings else None
        self._next_prompt_logprob_index = 1  # the first token has none
        self._special_tokens = tokenizer.special_tokens
        self._stop_tokens = request.end_tokens - tokenizer.end_tokens  # named by the request, and not part of the text
        self._row_events: list[TokenEvent] = []  # events of the row that was detokenized last
        self._text_pieces: list[str] = []  # pieces of all detokenized tokens, without special tokens
        self._text_end: int | None = None  # index in the whole text at which a stop string ended
        self._ends_with_stop_token = False  # the last token
        # Result of an embedding or classification request, which `finish` delivers.
        self.pooling_output: PoolingOutput | None = None
        if resumed_text is not None:
            self._resume(resumed_text)

    def _resume(self, text: ResumedText) -> None:
        """Go on behind the tokens of another stream, in which no stop string ended."""
        self.stream.resumed_text = text
        self._detokenizer = text.detokenizer
        self._text_pieces = [*text.pieces]
        if self._stop_strings is not None:
            num_skipped = max(self.request.sampling.min_tokens - 1, 0)
            self._stop_strings.skip("".join(text.pieces[:num_skipped]))
            self._stop_strings.find_match_end("".join(text.pieces[num_skipped:]))

    @property
    def num_tokens(self) -> int:
        """Number of the output's tokens so far."""
        return len(self.request.resumed_tokens) + self.record.num_generated

    @property
    def text(self) -> str:
        """Text so far, without special tokens."""
        return "".join(self._text_pieces)

    def detokenize_row(self, row: StepResultRow) -> int | None:
        """Detokenize a row. Returns how many of its tokens count if a stop string ends in one of them, else None."""
        tokens = row.tokens
        if len(tokens) == 1 and self._stop_strings is None and not row.top_logprobs:
            [token] = tokens
            if token not in self._special_tokens and token not in self._stop_tokens:  # nearly always
                piece = self._detokenizer.step(token)
                self._text_pieces.append(piece)
                self._row_events = [TokenEvent(token, piece, row.logprobs[0], False)]
                self._ends_with_stop_token = False
                return None
        self._row_events = []
        if len(tokens) > 1:  # cut after an end token and at the length limit; the first token always counts
            tokens = tokens[:find_finish_point(self.request, self.num_tokens, tokens, None)[0]]
        for index, token in enumerate(tokens):
            is_stop_token = token in self._stop_tokens
            piece = "" if is_stop_token else self._detokenizer.step(token)
            self._text_pieces.append(piece)
            is_special = is_stop_token or token in self._special_tokens
            text = self._tokenizer.decode_token(token) if is_special else piece
            top_tokens = tuple([TopToken(top, self._tokenizer.decode_token(top), logprob, top in self._special_tokens)
                                for top, logprob in row.top_logprobs[index]]) if row.top_logprobs else ()
            self._row_events.append(TokenEvent(token, text, row.logprobs[index], is_special, top_tokens))
            self._ends_with_stop_token = is_stop_token
            if self._stop_strings is None:
                continue
            if self.num_tokens + len(self._row_events) < self.request.sampling.min_tokens:
                self._stop_strings.skip(piece)
            elif (end := self._stop_strings.find_match_end(piece)) is not None:
                self._text_end = end
                return len(self._row_events)
        return None

    def deliver_row(self) -> None:
        """Deliver the row that was detokenized last, which `detokenize_row` has cut by `find_finish_point`, as the
        scheduler did."""
        self.stream.put_all(self._row_events)
        self.record.num_generated += len(self._row_events)

    def deliver_prompt_logprobs(self, logprobs: PromptLogprobs) -> None:
        """Deliver the logprobs not delivered yet: a prompt runs again after a preemption or a loss of the shards."""
        start = self._next_prompt_logprob_index
        num_known = max(0, start - logprobs.start)
        new_logprobs = tuple(logprobs.logprobs[num_known:])
        if new_logprobs:
            self.stream.put(PromptLogprobsEvent(start, new_logprobs, logprobs.top_logprobs[num_known:]))
            self._next_prompt_logprob_index += len(new_logprobs)

    def finish(self, reason: FinishReason) -> None:
        if self.pooling_output is not None:
            self.stream.put(PoolingEvent(self.pooling_output, self.record.timeline))
            return
        self.record.finish_reason = reason
        if self._text_end is None:
            self._text_pieces.append(rest := self._detokenizer.finish())
            self._text_end = self._stop_strings.find_match_end(rest) if self._stop_strings is not None else None
        text = "".join(self._text_pieces)[:self._text_end]
        is_stopped = self._text_end is not None or self._ends_with_stop_token
        self.stream.put(FinishedEvent(reason, text, self.num_tokens, self.record.timeline, is_stopped))
