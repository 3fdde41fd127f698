"""Rendering of generated tokens as TGI's JSON: events of a stream, or a whole response.

Text is escaped to ASCII: some clients take U+2028 and the like for the end of an event's line.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted

from router.engine.stream import (
    Event,
    FailedEvent,
    FinishedEvent,
    PromptEvent,
    Stream,
    TokenEvent,
    ToldEvent,
    TopToken,
)
from router.errors import Cancelled
from router.http.transport.errors import Told
from router.text.tokenizer import Tokenizer
from router.validation.validator import Choice

NO_TOKEN = TokenEvent(0, "", 0.0, special=True)  # placeholder for an end without a token
UNFINISHED = '"generated_text":null,"details":null'


def number(value: float | None) -> str:
    """Render a 32-bit float. Nine digits tell all such numbers apart. JSON has no infinities: the logprob of an
    excluded token becomes null."""
    return f"{value:.9g}" if value is not None and value - value == 0 else "null"


def token_json(token: TokenEvent | TopToken) -> str:
    special = "true" if token.special else "false"
    return f'{{"id":{token.id},"text":{quoted(token.text)},"logprob":{number(token.logprob)},"special":{special}}}'


def top_json(tops: Sequence[TopToken]) -> str:
    return f"[{','.join(map(token_json, tops))}]"


def seed_json(seed: int | None) -> str:
    return "null" if seed is None else str(seed)


class Streaming:
    """Renderer of one request's events. The last token's event carries the end; after a timeout without a token, an
    empty special token does."""

    __slots__ = ("_choice", "_details", "_index", "_prefix", "ended")

    def __init__(self, choice: Choice, details: bool, prefix: str) -> None:
        self.ended = False
        self._choice = choice
        self._details = details
        self._prefix = prefix  # prepended to the generated text
        self._index = 0

    def burst(self, events: list[Event]) -> bytes:
        parts: list[str] = []
        token: TokenEvent | None = None
        for event in events:
            if type(event) is TokenEvent:
                token = event
                self._index += 1
                parts.append(self._event(event, UNFINISHED))
            elif type(event) is FinishedEvent:
                if token is None:
                    token = NO_TOKEN
                    self._index += 1
                    parts.append("")
                parts[-1] = self._event(token, self._end(event))
                self.ended = True
            elif type(event) is FailedEvent:
                parts.append(self._failed(event))
                self.ended = True
        return "".join(parts).encode("ascii")

    def _event(self, token: TokenEvent, end: str) -> str:
        if token.top:
            end = f'"top_tokens":{top_json(token.top)},{end}'
        return f'data: {{"index":{self._index},"token":{token_json(token)},{end}}}\n\n'

    def _end(self, event: FinishedEvent) -> str:
        details = "null"
        if self._details:
            details = (f'{{"finish_reason":"{event.reason}","generated_tokens":{event.num_tokens},'
                       f'"seed":{seed_json(self._choice.seed)},"input_length":{len(self._choice.request.prompt)}}}')
        return f'"generated_text":{quoted(self._prefix + event.text)},"details":{details}'

    def _failed(self, event: FailedEvent) -> str:
        if isinstance(event.error, Cancelled):
            raise event.error
        return error_event(event.error)


def error_event(error: Exception) -> str:
    return f"data: {Told.of(error).json()}\n\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """Complete output of one choice."""

    choice: Choice
    tokens: list[TokenEvent]
    prompt_logprobs: list[float | None]  # one per prompt token
    end: FinishedEvent

    @property
    def mean_logprob(self) -> float:
        return sum(token.logprob for token in self.tokens) / max(len(self.tokens), 1)

    def details_json(self, tokenizer: Tokenizer, others: Sequence["Answer"], prefix: str) -> str:
        best_of = f',"best_of_sequences":[{",".join(other.choice_json(tokenizer, prefix) for other in others)}]'
        return f"{{{self._outcome(tokenizer)}{best_of if others else ''}{self._top_tokens()}}}"

    def choice_json(self, tokenizer: Tokenizer, prefix: str) -> str:
        """Render one of the choices other than the best."""
        text = quoted(prefix + self.end.text)
        return f'{{"generated_text":{text},{self._outcome(tokenizer)}{self._top_tokens()}}}'

    def _outcome(self, tokenizer: Tokenizer) -> str:
        return (f'"finish_reason":"{self.end.reason}","generated_tokens":{self.end.num_tokens},'
                f'"seed":{seed_json(self.choice.seed)},"prefill":[{self.prefill_json(tokenizer)}],'
                f'"tokens":[{",".join(map(token_json, self.tokens))}]')

    def prefill_json(self, tokenizer: Tokenizer) -> str:
        if not self.choice.request.prompt_logprobs:
            return ""
        return ",".join(
            f'{{"id":{token},"text":{quoted(tokenizer.token_text(token))},"logprob":{number(logprob)}}}'
            for token, logprob in zip(self.choice.request.prompt, self.prompt_logprobs, strict=True))

    def _top_tokens(self) -> str:
        tops = [token.top for token in self.tokens]
        return f',"top_tokens":[{",".join(map(top_json, tops))}]' if any(tops) else ""


@dataclass(frozen=True, slots=True)
class Said:
    """Output of a pooling request (embedding or classification)."""

    choice: Choice
    end: ToldEvent


async def said(stream: Stream, choice: Choice) -> Said:
    """Wait for the output of a pooling request. Raises the request's error if it failed."""
    while True:
        for event in await stream.events():
            if isinstance(event, FailedEvent):
                raise event.error
            if isinstance(event, ToldEvent):
                return Said(choice, event)


class Collector:
    """Collects the events of one stream in a callback, so that the waiting task wakes only once, at the end."""

    def __init__(self, stream: Stream, choice: Choice) -> None:
        self._stream = stream
        self._choice = choice
        self._tokens: list[TokenEvent] = []
        self._prompt_logprobs: list[float | None] = [None] * len(choice.request.prompt)
        self._end: asyncio.Future[FinishedEvent] = asyncio.get_running_loop().create_future()

    async def answer(self) -> Answer:
        """Wait for the end and return the answer. Raises the request's error if it failed."""
        self._stream.listen(self._burst)
        self._burst()
        end = await self._end
        return Answer(self._choice, self._tokens, self._prompt_logprobs, end)

    def _burst(self) -> None:
        for event in self._stream.take():
            match event:
                case TokenEvent():
                    self._tokens.append(event)
                case PromptEvent(start, logprobs):
                    self._prompt_logprobs[start:start + len(logprobs)] = logprobs
                case FinishedEvent() if not self._end.done():
                    self._end.set_result(event)
                case FailedEvent(error) if not self._end.done():
                    self._end.set_exception(error)
