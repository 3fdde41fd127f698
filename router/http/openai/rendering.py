"""Rendering of generated tokens as OpenAI's JSON: chunks of a stream or a whole response, for chats and completions.

The part that all chunks of a stream share is rendered once. Text is escaped to ASCII, as in TGI's events.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted

from router.engine.stream import Event, FailedEvent, FinishedEvent, TokenEvent, TopToken
from router.errors import Cancelled, RequestError
from router.http.openai.errors import ApiError
from router.http.transport.collect import Answer, number
from router.http.transport.errors import Told
from router.request import FinishReason

DONE = "data: [DONE]\n\n"
# OpenAI has no finish reason for a timeout; `length` also means that the text was cut off.
REASONS = {FinishReason.END_TOKEN: "stop", FinishReason.STOP_STRING: "stop",
           FinishReason.LENGTH: "length", FinishReason.TIMEOUT: "length"}
TGI_REASONS = REASONS | {FinishReason.STOP_STRING: "stop_sequence"}


@dataclass(frozen=True, slots=True)
class Words:
    """A dialect's finish reasons, and details of its chunks."""

    whole: Mapping[FinishReason, str]
    streamed_text: Mapping[FinishReason, str]
    unfinished: str  # JSON of the finish reason in a completion's chunks before the last
    calls: str
    every_delta_has_a_role: bool


OPENAI = Words(REASONS, REASONS, "null", "tool_calls", every_delta_has_a_role=False)
# As text-generation-inference has them (--compat tgi).
TGI = Words(TGI_REASONS, TGI_REASONS | {FinishReason.END_TOKEN: "eos_token"}, '""', "stop", every_delta_has_a_role=True)


def error_chunk(error: Exception) -> str:
    """Return an error and the end of a stream, in one format for all clients: TGI has `message` and
    `http_status_code`, OpenAI's clients read `type`, those of the Hub `error_type`."""
    told = Told.of(error)
    inner = {"message": told.text, "type": told.error_type, "http_status_code": told.status}
    return f"data: {json.dumps({'error': inner, 'error_type': told.error_type}, separators=(',', ':'))}\n\n{DONE}"


def api_error_chunk(error: Exception) -> str:
    """Return an error and the end of a stream in OpenAI's format."""
    return f"data: {ApiError.of(error).json()}\n\n{DONE}"


@dataclass(frozen=True, slots=True)
class Label:
    """Metadata of a response, repeated in each of its chunks."""

    id: str
    created: int  # in seconds
    model: str
    fingerprint: str
    words: Words = OPENAI
    error_chunk: Callable[[Exception], str] = error_chunk

    def json(self, kind: str) -> str:
        return (f'"object":"{kind}","id":"{self.id}","created":{self.created},"model":{quoted(self.model)},'
                f'"system_fingerprint":"{self.fingerprint}"')


@dataclass(frozen=True, slots=True)
class Extras:
    """Optional parts of a response that the client asked for."""

    usage: bool = False  # at the end of a stream
    logprobs: bool = False


def completion_json(label: Label, answer: Answer, extras: Extras) -> str:
    message = f'{{"role":"assistant","content":{quoted(answer.end.text)}}}'
    return chat_json(label, answer, extras, message, label.words.whole[answer.end.reason])


def chat_json(label: Label, answer: Answer, extras: Extras, message: str, reason: str) -> str:
    told = logprobs_json(answer.tokens) if extras.logprobs else "null"
    choice = f'{{"index":0,"message":{message},"logprobs":{told},"finish_reason":"{reason}"}}'
    usage = usage_json(len(answer.choice.request.prompt), answer.end.num_tokens)
    return f'{{{label.json("chat.completion")},"choices":[{choice}],"usage":{usage}}}'


def logprobs_json(tokens: Iterable[TokenEvent]) -> str:
    """Return the logprobs of all tokens, special ones included, so that their sum covers the whole output."""
    return f'{{"content":[{",".join(map(logprob_json, tokens))}]}}'


def logprob_json(token: TokenEvent) -> str:
    tops = ",".join(f"{{{token_json(top)}}}" for top in token.top)
    return f'{{{token_json(token)},"top_logprobs":[{tops}]}}'


def token_json(token: TokenEvent | TopToken) -> str:
    return (f'"token":{quoted(token.text)},"logprob":{number(token.logprob)},'
            f'"bytes":[{",".join(map(str, token.text.encode()))}]')


def text_completion_json(label: Label, answers: Sequence[Answer]) -> str:
    choices = ",".join(
        f'{{"index":{index},"text":{quoted(answer.end.text)},"logprobs":null,'
        f'"finish_reason":"{label.words.whole[answer.end.reason]}"}}' for index, answer in enumerate(answers))
    usage = usage_json(sum(len(answer.choice.request.prompt) for answer in answers),
                       sum(answer.end.num_tokens for answer in answers))
    return f'{{{label.json("text_completion")},"choices":[{choices}],"usage":{usage}}}'


class Pieces:
    """Renderer of one request's events, with one chunk per token. Subclasses define the format of a chunk.

    The last token's chunk carries the finish reason and any text not sent yet, so that the chunks add up to the whole.
    """

    __slots__ = ("_num_told", "ended")

    def __init__(self) -> None:
        self.ended = False
        self._num_told = 0  # characters sent so far

    def burst(self, events: list[Event]) -> bytes:
        parts: list[str] = []
        token: TokenEvent | None = None  # held back until the next event: it may be the last token
        for event in events:
            if token is not None and type(event) is not FinishedEvent:
                parts.append(self._piece(token))
                token = None
            if type(event) is TokenEvent:
                token = event
            elif type(event) is FinishedEvent:
                self.ended = True
                parts.append(self._end(event, event.text[self._num_told:], token))
                token = None
            elif type(event) is FailedEvent:
                self.ended = True
                parts.append(self._failed(event))
        if token is not None:
            parts.append(self._piece(token))
        return "".join(parts).encode("ascii")

    def _piece(self, token: TokenEvent) -> str:
        text = "" if token.special else token.text
        self._num_told += len(text)
        return self._chunk(text, token)

    def _chunk(self, text: str, token: TokenEvent | None, /) -> str:
        raise NotImplementedError

    def _end(self, event: FinishedEvent, text: str, token: TokenEvent | None, /) -> str:
        """Render the end, with the text not sent yet, and with the last token unless it is already sent."""
        raise NotImplementedError

    def _failed(self, event: FailedEvent) -> str:
        raise NotImplementedError


class Chunks(Pieces):
    """Renderer of a chat's stream."""

    __slots__ = ("_before", "_before_others", "_begin", "_error_chunk", "_extras", "_num_prompt_tokens", "_words")

    def __init__(self, label: Label, num_prompt_tokens: int, extras: Extras) -> None:
        super().__init__()
        self._begin = f'data: {{{label.json("chat.completion.chunk")},"choices":['
        self._before = self._begin + '{"index":0,"delta":{"role":"assistant","content":'
        self._before_others = self._begin + '{"index":0,"delta":{"content":'
        if label.words.every_delta_has_a_role:
            self._before_others = self._before
        self._words = label.words
        self._error_chunk = label.error_chunk
        self._num_prompt_tokens = num_prompt_tokens
        self._extras = extras

    def _chunk(self, text: str, token: TokenEvent | None, /) -> str:
        return self._content(text, token, "null")

    def _content(self, text: str, token: TokenEvent | None, reason: str) -> str:
        before, self._before = self._before, self._before_others
        return (f'{before}{quoted(text)}}},"logprobs":{self._told_of(token)},"finish_reason":{reason}}}],'
                '"usage":null}\n\n')

    def _told_of(self, token: TokenEvent | None) -> str:
        return logprobs_json([token]) if self._extras.logprobs and token is not None else "null"

    def _end(self, event: FinishedEvent, text: str, token: TokenEvent | None, /) -> str:
        return self._content(text, token, f'"{self._words.whole[event.reason]}"') + self._after(event.num_tokens)

    def _after(self, num_tokens: int) -> str:
        """Return what follows the last chunk: the usage, if requested, and the end of the stream."""
        if not self._extras.usage:
            return DONE
        return f'{self._begin}],"usage":{usage_json(self._num_prompt_tokens, num_tokens)}}}\n\n{DONE}'

    def _failed(self, event: FailedEvent) -> str:
        if isinstance(event.error, Cancelled):
            raise event.error
        return self._error_chunk(event.error)


class TextChunks(Pieces):
    """Renderer of one completion in a stream that may hold several. The last chunk of each has its usage."""

    __slots__ = ("_before", "_words", "error", "num_prompt_tokens", "num_tokens")

    def __init__(self, label: Label, index: int, num_prompt_tokens: int) -> None:
        super().__init__()
        self._before = f'data: {{{label.json("text_completion")},"choices":[{{"index":{index},"text":'
        self._words = label.words
        self.num_prompt_tokens = num_prompt_tokens
        self.num_tokens = 0  # known at the end
        self.error: RequestError | None = None  # ends all completions of the stream, not only this one

    def _chunk(self, text: str, _: TokenEvent | None, /) -> str:
        return (f'{self._before}{quoted(text)},"logprobs":null,"finish_reason":{self._words.unfinished}}}],'
                '"usage":null}\n\n')

    def _end(self, event: FinishedEvent, text: str, _: TokenEvent | None, /) -> str:
        self.num_tokens = event.num_tokens
        usage = usage_json(self.num_prompt_tokens, self.num_tokens)
        reason = self._words.streamed_text[event.reason]
        return f'{self._before}{quoted(text)},"logprobs":null,"finish_reason":"{reason}"}}],"usage":{usage}}}\n\n'

    def _failed(self, event: FailedEvent) -> str:
        self.error = event.error
        return ""


def text_usage_chunk(label: Label, texts: Sequence[TextChunks]) -> str:
    """Return the chunk with the usage of all completions together."""
    usage = usage_json(sum(text.num_prompt_tokens for text in texts), sum(text.num_tokens for text in texts))
    return f'data: {{{label.json("text_completion")},"choices":[],"usage":{usage}}}\n\n'


def usage_json(num_prompt_tokens: int, num_tokens: int) -> str:
    return (f'{{"prompt_tokens":{num_prompt_tokens},"completion_tokens":{num_tokens},'
            f'"total_tokens":{num_prompt_tokens + num_tokens}}}')
