"""Answers of chats as typed parts (text, reasoning and tool calls), whole or as they come, for every dialect that shows
them apart. A stream and a whole response have the same parts: both leave out the whitespace around reasoning and, where
there may be tool calls, around text, which only separated them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from aiohttp import web

from router.engine.output_stream import FinishedEvent, TokenEvent
from router.http.openai.rendering import ChoiceStreamRenderer
from router.http.openai.stop_string_removal import StopStringHoldback, trim_stop_string
from router.http.transport.request_context_and_middleware import RequestContext
from router.http.transport.services import GenerationOutput, Services
from router.http.transport.sse import KEEPALIVE_SECONDS, EventPump, open_response_stream
from router.request import FinishReason
from router.text.response_parser import (
    ArgumentsPiece,
    ContentPiece,
    ParsedToolCall,
    ReasoningPiece,
    ResponseParserProtocol,
    ResponsePart,
    ToolCallStart,
    WholePart,
    join_adjacent_parts,
)
from router.validation.validator import ValidatedRequest

COMPLETED_FINISH_REASONS = frozenset({FinishReason.END_TOKEN, FinishReason.STOP_STRING})


class AnswerWhitespaceStripper:
    """Strips the whitespace around an answer's reasoning, and around its text if the parser says so, while they come in
    pieces, and counts the tokens of the reasoning: those up to its last piece, without those of other parts."""

    def __init__(self, parser: ResponseParserProtocol | None) -> None:
        """`parser`: of the answer, which knows at the latest with the first piece of the text whether to strip it."""
        self._parser = parser
        # Whitespace that is returned once more follows; None before the first other character.
        self._held_back: dict[type[ContentPiece | ReasoningPiece], str | None] = {}
        self.num_reasoning_tokens = 0
        self._num_tokens_since_part = 0

    def strip_parts(self, parts: Iterable[ResponsePart], num_tokens: int = 1) -> list[ResponsePart]:
        """Return what is left of the parts that `num_tokens` more tokens have brought."""
        self._num_tokens_since_part += num_tokens
        return [stripped for part in parts if (stripped := self._strip_part(part)) is not None]

    def _strip_part(self, part: ResponsePart) -> ResponsePart | None:
        if isinstance(part, ReasoningPiece) or (
                isinstance(part, ContentPiece) and self._parser is not None and self._parser.strips_text):
            text = self._strip(type(part), part.text)
            if not text:
                return None
            part = type(part)(text)
        if isinstance(part, ReasoningPiece):
            self.num_reasoning_tokens += self._num_tokens_since_part
        self._num_tokens_since_part = 0
        return part

    def _strip(self, kind: type[ContentPiece | ReasoningPiece], text: str) -> str:
        held_back = self._held_back.get(kind)
        if held_back is None:
            text = text.lstrip()
            if not text:
                return ""
        stripped = text.rstrip()
        if not stripped:
            self._held_back[kind] = (held_back or "") + text
            return ""
        self._held_back[kind] = text[len(stripped):]
        return (held_back or "") + stripped


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: its parts, in order, the event that ended it, and the tokens of its reasoning."""

    parts: Sequence[WholePart]
    final_event: FinishedEvent
    num_reasoning_tokens: int = 0

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, ContentPiece))

    @property
    def reasoning(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, ReasoningPiece))

    @property
    def tool_calls(self) -> Sequence[ParsedToolCall]:
        return [part for part in self.parts if isinstance(part, ParsedToolCall)]


def parse_answer(output: GenerationOutput, parser: ResponseParserProtocol | None,
                 stop_strings_to_remove: Sequence[str]) -> Answer:
    """Return the parts of a whole answer; without a parser it is one text, with its whitespace."""
    if parser is None:
        text = trim_stop_string(output.final_event, stop_strings_to_remove)
        return Answer([ContentPiece(text)] if text else [], output.final_event)
    stripper, parts = AnswerWhitespaceStripper(parser), list[ResponsePart]()
    *pieces, last_piece = raw_token_texts(output, parser, stop_strings_to_remove)  # one for each token
    for piece in pieces:
        parts += stripper.strip_parts(parser.feed(piece))
    parts += stripper.strip_parts([*parser.feed(last_piece), *parser.finish()], min(len(output.tokens), 1))
    return Answer(join_adjacent_parts(parts), output.final_event, stripper.num_reasoning_tokens)


class AnswerStreamRenderer(ChoiceStreamRenderer):
    """Base class of renderers of an answer's parts as they come. Subclasses define the format of a part and of the
    end."""

    keepalive_seconds: float | None = KEEPALIVE_SECONDS  # of silence, after which a comment is sent; None: never

    __slots__ = ("_is_in_call", "_num_tool_calls", "_parser", "_stripper")

    def __init__(self, render_error: Callable[[Exception], str], num_prompt_tokens: int,
                 stop_strings_to_remove: Sequence[str], parser: ResponseParserProtocol | None) -> None:
        """`parser`: of the answer; None if it is text alone."""
        super().__init__(render_error, num_prompt_tokens, stop_strings_to_remove)
        self._parser = parser
        self._stripper = AnswerWhitespaceStripper(parser)
        self._num_tool_calls = 0
        self._is_in_call = False  # whether the arguments of the last call may go on

    def render_opening(self) -> str:
        """Render what is sent before the first token."""
        return ""

    def _hold_back(self, holdback: StopStringHoldback, text: str, token: TokenEvent) -> str:
        """Trim, but let a special token come behind the text before it: to the parser both are text."""
        return holdback.flush() if token.special and self._parser is not None else holdback.feed(text)

    def _render_chunk(self, text: str, token: TokenEvent | None, /) -> str:
        if self._parser is None:
            return self._render_parts([ContentPiece(text)] if text else [], token)
        parts = self._parser.feed(add_special_token_text(text, token))
        return self._render_parts(self._stripper.strip_parts(parts, 0 if token is None else 1), token)

    def _render_end(self, event: FinishedEvent, text: str, token: TokenEvent | None, /) -> str:
        self._store_token_counts(event)
        if self._parser is None:
            parts: list[ResponsePart] = [ContentPiece(text)] if text else []
        else:
            last = get_last_token_text(text, token, event, self._parser)
            parts = [*self._parser.feed(last), *self._parser.finish()]
            parts = self._stripper.strip_parts(parts, 0 if token is None else 1)
        return self._render_parts(parts, token) + self._end_call() + self._render_answer_end(event)

    def _render_parts(self, parts: Sequence[ResponsePart], token: TokenEvent | None) -> str:  # noqa: ARG002 - for subclasses
        return "".join(map(self._render_part, parts))

    def _render_part(self, part: ResponsePart) -> str:
        match part:
            case ArgumentsPiece(text):
                return self._render_arguments(text)
            case ContentPiece(text):
                return self._end_call() + self._render_text(text)
            case ReasoningPiece(text):
                return self._end_call() + self._render_reasoning(text)
            case ToolCallStart(name):
                rendered = self._end_call() + self._render_call_opening(name)
                self._num_tool_calls += 1
                self._is_in_call = True
                return rendered
            case ParsedToolCall(name, arguments):
                return (self._render_part(ToolCallStart(name)) + self._render_part(ArgumentsPiece(arguments))
                        + self._end_call())

    def _end_call(self) -> str:
        if not self._is_in_call:
            return ""
        self._is_in_call = False
        return self._render_call_end()

    def _render_text(self, text: str) -> str:
        raise NotImplementedError

    def _render_reasoning(self, text: str) -> str:
        raise NotImplementedError

    def _render_call_opening(self, name: str) -> str:
        raise NotImplementedError

    def _render_arguments(self, text: str) -> str:
        raise NotImplementedError

    def _render_call_end(self) -> str:
        raise NotImplementedError

    def _render_answer_end(self, event: FinishedEvent) -> str:
        raise NotImplementedError


def raw_token_texts(output: GenerationOutput, parser: ResponseParserProtocol,
                    stop_strings_to_remove: Sequence[str] = ()) -> Iterator[str]:
    """Yield the texts of all tokens, special ones included. The last piece is the rest of the visible text, with the
    last token if `get_last_token_text` keeps it."""
    tokens, last = output.tokens[:-1], next(reversed(output.tokens), None)
    holdback, num_characters = StopStringHoldback(stop_strings_to_remove), 0
    for token in tokens:
        text = holdback.flush() if token.special else holdback.feed(token.text)
        num_characters += len(text)
        yield add_special_token_text(text, token)
    rest = trim_stop_string(output.final_event, stop_strings_to_remove)[num_characters:]
    yield get_last_token_text(rest, last, output.final_event, parser)


def add_special_token_text(text: str, token: TokenEvent | None) -> str:
    """Return the text, followed by the token's own text if it is special: visible text leaves special tokens out."""
    return text + token.text if token is not None and token.special else text


def get_last_token_text(text: str, token: TokenEvent | None, final_event: FinishedEvent,
                        parser: ResponseParserProtocol) -> str:
    """Return the last token's text. A special token ends the text, also where the length would have, and is left out
    unless it closes a tool call or reasoning. After a timeout it is like those before it."""
    if token is None or final_event.finish_reason is FinishReason.TIMEOUT or parser.is_field_end_token(token.text):
        return add_special_token_text(text, token)
    return text


async def stream_answer(services: Services, request: web.Request, context: RequestContext, headers: Mapping[str, str],
                        *, choice: ValidatedRequest, renderer: AnswerStreamRenderer) -> web.StreamResponse:
    """Stream a single answer. The stream opens only after the request is submitted, so that errors up to then have
    their HTTP status; a later error is the last event."""
    with closing(services.submit(choice, context)) as stream:
        async with open_response_stream(request, headers, services.config.slow_client_timeout, renderer.render_error,
                                        renderer.keepalive_seconds) as event_stream:
            if opening := renderer.render_opening():
                event_stream.write(opening.encode())
            await EventPump(stream, renderer, event_stream, services.pump_flusher).run()
            if renderer.error is not None:
                raise renderer.error
        return event_stream.response
