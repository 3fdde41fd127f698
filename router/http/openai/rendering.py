"""Rendering of generated tokens as OpenAI's JSON: what chats and completions have in common, and chats, as chunks of a
stream or as a whole response. The part that all chunks of a stream share is rendered once. Text is escaped to ASCII, as
in TGI's events."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from json.encoder import encode_basestring_ascii as quoted
from typing import ClassVar, Self

from aiohttp import web

from router.engine.output_stream import FailedEvent, FinishedEvent, RequestStream, StreamEvent, TokenEvent, TopToken
from router.errors import Cancelled, RequestError
from router.http.openai.stop_string_removal import StopStringHoldback, trim_stop_string
from router.http.tgi.rendering import float32_json
from router.http.transport.body import ListJson
from router.http.transport.error_responses import OpenAIErrorReply, TgiErrorReply, has_openai_error_format
from router.http.transport.request_context_and_middleware import ANSWER_ID
from router.http.transport.services import GenerationOutput, Services
from router.request import FinishReason
from router.text.tokenizer import Tokenizer

DONE_EVENT = "data: [DONE]\n\n"
CHAT_CHUNK_TYPE = "chat.completion.chunk"
USAGE_TEMPLATE = '{{"prompt_tokens":{0},"completion_tokens":{1},"total_tokens":{2}}}'
EMPTY_USAGE_END = b'"usage":null}\n\n'  # of a chunk
CHOICE_END = b'}],"usage":'  # in a chunk, whose texts have their quotes escaped
SYSTEM_FINGERPRINT = f"{version('weft')}-native"
# OpenAI has no finish reason for a timeout; `length` also means that the text was cut off.
OPENAI_FINISH_REASONS = {FinishReason.END_TOKEN: "stop", FinishReason.STOP_STRING: "stop",
                         FinishReason.LENGTH: "length", FinishReason.TIMEOUT: "length"}
TGI_FINISH_REASONS = OPENAI_FINISH_REASONS | {FinishReason.STOP_STRING: "stop_sequence"}


@dataclass(frozen=True, slots=True)
class OpenAIResponseDialect:
    """Differences between dialects in the responses of OpenAI's routes."""

    finish_reasons: Mapping[FinishReason, str]
    completion_chunk_finish_reasons: Mapping[FinishReason, str]
    unfinished_reason_json: str  # JSON of the finish reason in a completion's chunks before the last
    tool_calls_finish_reason: str
    every_delta_has_a_role: bool
    refusal_field: str  # of a message
    has_null_content: bool  # whether a message with calls alone has `content`
    stop_precedes_length: bool  # whether a text that stops with its last possible token has stopped
    completion_ends_with_usage: bool  # whether the last chunk of a streamed completion has its usage, unasked
    has_usage_details: bool  # whether usage tells the tokens of the prompt that were cached, and those of reasoning


OPENAI_DIALECT = OpenAIResponseDialect(
    OPENAI_FINISH_REASONS, OPENAI_FINISH_REASONS, "null", "tool_calls", every_delta_has_a_role=False,
    refusal_field=',"refusal":null', has_null_content=True, stop_precedes_length=True, completion_ends_with_usage=False,
    has_usage_details=True)
# As text-generation-inference has them (--compat tgi).
TGI_COMPAT_DIALECT = OpenAIResponseDialect(
    TGI_FINISH_REASONS, TGI_FINISH_REASONS | {FinishReason.END_TOKEN: "eos_token"}, '""', "stop",
    every_delta_has_a_role=True, refusal_field="", has_null_content=False, stop_precedes_length=False,
    completion_ends_with_usage=True, has_usage_details=False)


def get_finish_reason(event: FinishedEvent, dialect: OpenAIResponseDialect) -> FinishReason:
    """Return the reason that the dialect reports; to OpenAI's clients a stop goes before the length."""
    return FinishReason.STOP_STRING if event.is_stopped and dialect.stop_precedes_length else event.finish_reason


def final_error_events(error: Exception) -> str:
    """Return an error and the end of a stream, in one format for all clients: TGI has `message` and
    `http_status_code`, OpenAI's clients read `type`, those of the Hub `error_type`."""
    reply = TgiErrorReply.from_exception(error)
    error_object = {"message": reply.message, "type": reply.error_type, "http_status_code": reply.status}
    return (f"data: {json.dumps({'error': error_object, 'error_type': reply.error_type}, separators=(',', ':'))}\n\n"
            f"{DONE_EVENT}")


def render_error_chunk(error: Exception, *, path: str, compat: str) -> str:
    """Return an error and the end of a stream in the format of the route at `path`."""
    if not has_openai_error_format(path, compat):
        return final_error_events(error)
    return f"data: {OpenAIErrorReply.from_exception(error).to_json()}\n\n{DONE_EVENT}"


@dataclass(frozen=True, slots=True)
class ResponseMetadata:
    """Metadata of a response, repeated in each of its chunks."""

    id: str
    created: int  # in seconds
    model: str
    system_fingerprint: str
    dialect: OpenAIResponseDialect = OPENAI_DIALECT
    render_error_chunk: Callable[[Exception], str] = final_error_events

    @classmethod
    def create(cls, services: Services, request: web.Request, id_prefix: str, model: str) -> Self:
        """Return the metadata of a new response to this request."""
        return cls(id_prefix + request[ANSWER_ID], int(time.time()), model, SYSTEM_FINGERPRINT,
                   TGI_COMPAT_DIALECT if services.is_tgi else OPENAI_DIALECT,
                   partial(render_error_chunk, path=request.path, compat=services.config.compat))

    def to_json_fields(self, object_type: str) -> str:
        return (f'"object":"{object_type}","id":"{self.id}","created":{self.created},"model":{quoted(self.model)},'
                f'"system_fingerprint":"{self.system_fingerprint}"')


@dataclass(frozen=True, slots=True)
class ChatOutputOptions:
    """Optional parts of a chat's response, and the stop strings that are left out of its text."""

    includes_usage: bool = False  # at the end of a stream
    includes_logprobs: bool = False
    tokenizer: Tokenizer | None = None  # which knows the bytes of tokens in logprobs; None: those of their text
    stop_strings_to_remove: tuple[str, ...] = ()
    counts_reasoning: bool = False  # whether usage has the tokens of reasoning
    returns_token_ids: bool = False


@dataclass(frozen=True, slots=True)
class RenderedChoice:
    """JSON of one choice of a whole response, and the number of its tokens that are reasoning; None if that is not
    told."""

    json: str
    num_reasoning_tokens: int | None = None


def chat_completion_json(metadata: ResponseMetadata, outputs: Sequence[GenerationOutput],
                         choices: Sequence[RenderedChoice], *, returns_token_ids: bool = False) -> ListJson:
    """Return the response to a chat, with its choices."""
    usage = output_usage_json(metadata, outputs, len(outputs),
                              sum_known([choice.num_reasoning_tokens for choice in choices]))
    prompt_field = (f',"prompt_token_ids":{token_ids_json(outputs[0].validated_request.request.prompt)}'
                    if returns_token_ids else "")
    return ListJson(f'{{{metadata.to_json_fields("chat.completion")},"choices":[', [choice.json for choice in choices],
                    f'],"usage":{usage}{prompt_field}}}')


def token_ids_json(tokens: Iterable[int]) -> str:
    return f"[{','.join(map(str, tokens))}]"


def text_chat_choice_json(metadata: ResponseMetadata, index: int, output: GenerationOutput,
                          output_options: ChatOutputOptions) -> RenderedChoice:
    text = trim_stop_string(output.final_event, output_options.stop_strings_to_remove)
    message = f'{{"role":"assistant","content":{quoted(text)}{metadata.dialect.refusal_field}}}'
    return RenderedChoice(chat_choice_json(
        index, output, output_options, message,
        metadata.dialect.finish_reasons[get_finish_reason(output.final_event, metadata.dialect)]))


def chat_choice_json(index: int, output: GenerationOutput, output_options: ChatOutputOptions, message_json: str,
                     finish_reason: str) -> str:
    logprobs = logprobs_json(output.tokens, output_options)
    ids_field = (f',"token_ids":{token_ids_json(token.id for token in output.tokens)}'
                 if output_options.returns_token_ids else "")
    return (f'{{"index":{index},"message":{message_json},"logprobs":{logprobs},"finish_reason":"{finish_reason}"'
            f'{ids_field}}}')


def logprobs_json(tokens: Iterable[TokenEvent | None], output_options: ChatOutputOptions) -> str:
    """Return the logprobs of all tokens, special ones included, so that their sum covers the whole output; null if they
    were not asked for, or for a chunk without a token (None)."""
    if not output_options.includes_logprobs or tokens == [None]:
        return "null"
    known_tokens = (token for token in tokens if token is not None)
    return f'{{"content":{token_logprobs_json(known_tokens, output_options.tokenizer)}}}'


def token_logprobs_json(tokens: Iterable[TokenEvent], tokenizer: Tokenizer | None) -> str:
    """Return the list of the tokens' logprobs. `tokenizer` knows the bytes of tokens; None: those of their text."""
    entries = ",".join(f"{{{token_fields(token, tokenizer)},"
                       f'"top_logprobs":[{top_tokens_json(token, tokenizer)}]}}' for token in tokens)
    return f"[{entries}]"


def top_tokens_json(token: TokenEvent, tokenizer: Tokenizer | None) -> str:
    return ",".join(f"{{{token_fields(top, tokenizer)}}}" for top in token.top_tokens)


def token_fields(token: TokenEvent | TopToken, tokenizer: Tokenizer | None) -> str:
    token_bytes = None if tokenizer is None else tokenizer.get_token_bytes(token.id)
    return (f'"token":{quoted(token.text)},"logprob":{float32_json(token.logprob)},'
            f'"bytes":[{",".join(map(str, token.text.encode() if token_bytes is None else token_bytes))}]')


def usage_json(outputs: Sequence[GenerationOutput], num_choices: int = 1, template: str = USAGE_TEMPLATE) -> str:
    """Render the tokens of prompts and outputs, and their sum, in a dialect's order of the fields. A prompt counts once
    for all its choices."""
    return format_usage(sum(len(output.validated_request.request.prompt) for output in outputs[::num_choices]),
                        sum(output.final_event.num_tokens for output in outputs), template)


def output_usage_json(metadata: ResponseMetadata, outputs: Sequence[GenerationOutput], num_choices: int,
                      num_reasoning_tokens: int | None = None) -> str:
    """Render the usage of a whole response of OpenAI's routes."""
    num_cached_tokens = sum(output.final_event.timeline.num_prefix_hit_tokens for output in outputs[::num_choices])
    return add_usage_details(usage_json(outputs, num_choices), metadata.dialect, num_cached_tokens,
                             num_reasoning_tokens)


def add_usage_details(usage: str, dialect: OpenAIResponseDialect, num_cached_tokens: int,
                      num_reasoning_tokens: int | None) -> str:
    """Return the usage with the tokens of the prompt that were cached, if any were, and with those of reasoning, if
    they are known."""
    if not dialect.has_usage_details:
        return usage
    details = f',"prompt_tokens_details":{{"cached_tokens":{num_cached_tokens}}}' if num_cached_tokens else ""
    if num_reasoning_tokens is not None:
        details += f',"completion_tokens_details":{{"reasoning_tokens":{num_reasoning_tokens}}}'
    return f"{usage[:-1]}{details}}}"


def sum_known(numbers: Sequence[int | None]) -> int | None:
    """Return the sum of the numbers, or None if all are unknown."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def format_usage(num_prompt_tokens: int, num_tokens: int, template: str = USAGE_TEMPLATE) -> str:
    return template.format(num_prompt_tokens, num_tokens, num_prompt_tokens + num_tokens)


class ChunkStreamRenderer:
    """Renderer of one request's events, with one chunk per token. Subclasses define the format of a chunk.

    The last token's chunk carries the finish reason and any text not sent yet, so that the chunks add up to the whole.
    """

    __slots__ = ("_holdback", "_num_sent_characters", "_stop_strings", "is_finished", "render_error")

    def __init__(self, render_error: Callable[[Exception], str], stop_strings_to_remove: Sequence[str] = ()) -> None:
        """`stop_strings_to_remove`: stop strings of the request, unless they are kept in the text."""
        self.is_finished = False
        self.render_error = render_error
        self._num_sent_characters = 0  # characters sent so far
        self._stop_strings = stop_strings_to_remove
        self._holdback = StopStringHoldback(stop_strings_to_remove) if stop_strings_to_remove else None

    def render(self, events: list[StreamEvent]) -> bytes:
        parts: list[str] = []
        end = events[-1] if events else None
        last_token: TokenEvent | None = None  # goes into the chunk of the end
        if type(end) is FinishedEvent and len(events) > 1 and type(token := events[-2]) is TokenEvent:
            last_token, events = token, events[:-2]
        for event in events:
            if type(event) is TokenEvent:
                text = "" if event.special else event.text
                if self._holdback is not None:
                    text = self._hold_back(self._holdback, text, event)
                self._num_sent_characters += len(text)
                parts.append(self._render_chunk(text, event))
        if type(end) is FinishedEvent:
            self.is_finished = True
            whole_text = trim_stop_string(end, self._stop_strings) if self._stop_strings else end.text
            parts.append(self._render_end(end, whole_text[self._num_sent_characters:], last_token))
        elif type(end) is FailedEvent:
            self.is_finished = True
            parts.append(self._handle_failure(end))
        return "".join(parts).encode("ascii")

    def _hold_back(self, holdback: StopStringHoldback, text: str, token: TokenEvent) -> str:  # noqa: ARG002 - for subclasses
        return holdback.feed(text)

    def _render_chunk(self, text: str, token: TokenEvent | None, /) -> str:
        raise NotImplementedError

    def _render_end(self, event: FinishedEvent, text: str, token: TokenEvent | None, /) -> str:
        """Render the end, with the text not sent yet, and with the last token unless it is already sent."""
        raise NotImplementedError

    def _handle_failure(self, event: FailedEvent) -> str:
        if isinstance(event.error, Cancelled):
            raise event.error
        return self.render_error(event.error)


class ChoiceStreamRenderer(ChunkStreamRenderer):
    """Renderer of one choice in a stream that may hold several. The end of the stream is not its own."""

    has_output: ClassVar[bool] = True  # whether chunks have the generated tokens
    # where vLLM puts the prompt's tokens, if they are asked for: in the choice, or beside the choices
    has_prompt_ids_in_choice: ClassVar[bool] = False

    __slots__ = ("error", "num_cached_tokens", "num_prompt_tokens", "num_reasoning_tokens", "num_tokens")

    def __init__(self, render_error: Callable[[Exception], str], num_prompt_tokens: int,
                 stop_strings_to_remove: Sequence[str]) -> None:
        super().__init__(render_error, stop_strings_to_remove)
        self.num_prompt_tokens = num_prompt_tokens
        self.num_tokens = self.num_cached_tokens = 0  # known at the end
        self.num_reasoning_tokens: int | None = None  # known at the end, if usage tells it
        self.error: RequestError | None = None  # ends all choices of the stream, not only this one

    async def render_prompt(self, stream: RequestStream) -> None:
        """Render what the first chunk has of the prompt, if that may take long, off the event loop."""

    def _store_token_counts(self, event: FinishedEvent) -> None:
        self.num_tokens, self.num_cached_tokens = event.num_tokens, event.timeline.num_prefix_hit_tokens

    def _handle_failure(self, event: FailedEvent) -> str:
        """Keep the error, with which the handler ends all choices of the stream; render only what was held back."""
        self.error = event.error
        held_back = "" if self._holdback is None else self._holdback.flush()
        return self._render_chunk(held_back, None) if held_back else ""


class OpenAIChatStreamRenderer(ChoiceStreamRenderer):
    """Renderer of one choice in a chat's stream."""

    __slots__ = (
        "_chunk_prefix",
        "_delta_prefix",
        "_dialect",
        "_finish_reason_json",
        "_later_chunk_prefix",
        "_output_options",
    )

    def __init__(self, metadata: ResponseMetadata, index: int, num_prompt_tokens: int,
                 output_options: ChatOutputOptions) -> None:
        super().__init__(metadata.render_error_chunk, num_prompt_tokens, output_options.stop_strings_to_remove)
        self._delta_prefix = delta_prefix(metadata, index)
        self._chunk_prefix = self._delta_prefix + '{"role":"assistant","content":'
        self._later_chunk_prefix = (self._chunk_prefix if metadata.dialect.every_delta_has_a_role
                                    else self._delta_prefix + '{"content":')
        self._finish_reason_json = "null"  # until the end
        self._dialect = metadata.dialect
        self._output_options = output_options

    def _render_chunk(self, text: str, token: TokenEvent | None, /) -> str:
        logprobs = logprobs_json([token], self._output_options) if self._output_options.includes_logprobs else "null"
        prefix, self._chunk_prefix = self._chunk_prefix, self._later_chunk_prefix
        return (f'{prefix}{quoted(text)}}},"logprobs":{logprobs},"finish_reason":{self._finish_reason_json}}}],'
                '"usage":null}\n\n')

    def _render_end(self, event: FinishedEvent, text: str, token: TokenEvent | None, /) -> str:
        self._store_token_counts(event)
        self._finish_reason_json = f'"{self._dialect.finish_reasons[get_finish_reason(event, self._dialect)]}"'
        return self._render_chunk(text, token)


@dataclass(frozen=True, slots=True)
class TokenChunkDetails:
    """Parts of a choice's chunks about each token, if asked for."""

    has_usage: bool = False  # usage so far
    prompt_ids: Sequence[int] | None = None  # of the first chunk; the last chunk of each token has its id. None: no ids


class TokenChunkRenderer:
    """Renderer of a choice's chunks with details of each token.

    A token may make several chunks. The last one has its id: a client that has the id has all that the token made.
    """

    def __init__(self, renderer: ChoiceStreamRenderer, details: TokenChunkDetails) -> None:
        self.is_finished = False
        self._renderer = renderer
        self._details = details
        self._num_tokens = 0
        self._are_prompt_ids_due = details.prompt_ids is not None

    def render(self, events: list[StreamEvent]) -> bytes:
        rendered: list[bytes] = []
        start = 0
        for place, event in enumerate(events, 1):
            if type(event) is not TokenEvent:
                continue
            self._num_tokens += 1
            if place + 1 == len(events) and type(events[-1]) is FinishedEvent:  # they share a chunk
                break
            rendered.append(self._render_chunks(events[start:place]))
            start = place
        return b"".join([*rendered, self._render_chunks(events[start:])])

    def _render_chunks(self, events: list[StreamEvent]) -> bytes:
        rendered = self._renderer.render(events)
        self.is_finished = self._renderer.is_finished
        if self._details.prompt_ids is not None:
            rendered = self._add_ids(rendered, next((event.id for event in events if type(event) is TokenEvent), None))
        if self._details.has_usage:
            usage = format_usage(self._renderer.num_prompt_tokens, self._num_tokens)
            rendered = rendered.replace(EMPTY_USAGE_END, f'"usage":{usage}}}\n\n'.encode())
        return rendered

    def _add_ids(self, rendered: bytes, token: int | None) -> bytes:
        """Add the id of the token that made these chunks; None without one."""
        if token is not None and self._renderer.has_output:
            before, choice_end, after = rendered.rpartition(CHOICE_END)
            rendered = b'%b,"token_ids":[%d]%b%b' % (before, token, choice_end, after)
        if self._are_prompt_ids_due and rendered:
            self._are_prompt_ids_due = False
            ids = token_ids_json(self._details.prompt_ids or ()).encode()
            place, field = ((CHOICE_END, b',"prompt_token_ids":%b') if self._renderer.has_prompt_ids_in_choice
                            else (b'"object":', b'"prompt_token_ids":%b,'))
            rendered = rendered.replace(place, field % ids + place, 1)
        return rendered


def delta_prefix(metadata: ResponseMetadata, index: int) -> str:
    """Return what a chunk of a chat has before its delta."""
    return f'data: {{{metadata.to_json_fields(CHAT_CHUNK_TYPE)},"choices":[{{"index":{index},"delta":'


def usage_chunk(metadata: ResponseMetadata, object_type: str, renderers: Sequence[ChoiceStreamRenderer],
                num_choices: int) -> str:
    """Return the chunk with the usage of all choices together; a prompt counts once for its `num_choices`."""
    usage = format_usage(sum(choice.num_prompt_tokens for choice in renderers[::num_choices]),
                         sum(choice.num_tokens for choice in renderers))
    usage = add_usage_details(usage, metadata.dialect,
                              sum(choice.num_cached_tokens for choice in renderers[::num_choices]),
                              sum_known([choice.num_reasoning_tokens for choice in renderers]))
    return f'data: {{{metadata.to_json_fields(object_type)},"choices":[],"usage":{usage}}}\n\n'
