"""Answers in Ollama's format: one object for a whole response, one line per part for a stream. Both have the parts of
`http/openai/answer_parts.py`. Text is escaped to ASCII."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as quoted
from math import fsum
from time import monotonic as clock
from time import time_ns

from router.engine.output_stream import FinishedEvent, TokenEvent
from router.http.openai.answer_parts import AnswerStreamRenderer, parse_answer
from router.http.openai.rendering import OPENAI_DIALECT, get_finish_reason, token_logprobs_json
from router.http.transport.error_responses import OllamaErrorReply
from router.http.transport.services import GenerationOutput
from router.scheduler.sequence import RUNNING_PHASES, RequestPhase
from router.text.response_parser import (
    ContentPiece,
    ParsedToolCall,
    ReasoningPiece,
    ResponseParserProtocol,
    ResponsePart,
)
from router.text.tokenizer import Tokenizer

NANOSECONDS = 1_000_000_000  # in a second
NOT_DONE = '"done":false'
LOADED = '"done":true,"done_reason":"load"'  # end of an answer to a request for nothing but the model


def format_time(time_in_ns: int) -> str:
    """Return a time since the epoch as in RFC 3339, with nanoseconds."""
    seconds, nanoseconds = divmod(time_in_ns, NANOSECONDS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}Z"


def to_nanoseconds(seconds: float) -> int:
    return round(seconds * NANOSECONDS)


def render_error_line(error: Exception) -> str:
    return f"{OllamaErrorReply.from_exception(error).to_json()}\n"


def ollama_call_json(index: int, call: ParsedToolCall) -> str | None:
    """Render a call; None if its arguments are no JSON, as when the answer was cut off within them."""
    try:
        arguments = json.dumps(json.loads(call.arguments), allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return f'{{"function":{{"index":{index},"name":{quoted(call.name)},"arguments":{arguments}}}}}'


@dataclass(frozen=True, slots=True)
class OllamaResponseRenderer:
    """Renderer of the objects of one response, to a chat or to a generation."""

    model: str
    arrived_at: float  # of time.monotonic
    is_chat: bool
    logprob_tokenizer: Tokenizer | None  # if the response has logprobs

    def to_json(self, end_fields: str, text: str = "", thinking: str = "", calls: Sequence[str] = (),
                tokens: Sequence[TokenEvent] = ()) -> str:
        """Render an object with a part of the answer or with all of it, and with the logprobs of `tokens`. `end_fields`
        come from `render_end_fields`, or are NOT_DONE or LOADED."""
        thinking_field = f',"thinking":{quoted(thinking)}' if thinking else ""
        calls_field = f',"tool_calls":[{",".join(calls)}]' if calls else ""
        answer = (f'"message":{{"role":"assistant","content":{quoted(text)}{thinking_field}{calls_field}}}'
                  if self.is_chat else f'"response":{quoted(text)}{thinking_field}')
        logprobs_field = f',"logprobs":{token_logprobs_json(tokens, self.logprob_tokenizer)}' if tokens else ""
        return (f'{{"model":{quoted(self.model)},"created_at":"{format_time(time_ns())}",{answer},'
                f'{end_fields}{logprobs_field}}}')

    def render_end_fields(self, event: FinishedEvent, num_prompt_tokens: int) -> str:
        now = clock()
        seconds_by_phase = event.timeline.seconds_by_phase(now)
        waiting = fsum(seconds for phase, seconds in seconds_by_phase.items() if phase not in RUNNING_PHASES)
        prefill, decode = (seconds_by_phase.get(phase, 0.0) for phase in (RequestPhase.PREFILL, RequestPhase.DECODE))
        reason = OPENAI_DIALECT.finish_reasons[get_finish_reason(event, OPENAI_DIALECT)]
        return (f'"done":true,"done_reason":"{reason}","total_duration":{to_nanoseconds(now - self.arrived_at)},'
                f'"load_duration":{to_nanoseconds(waiting)},"prompt_eval_count":{num_prompt_tokens},'
                f'"prompt_eval_duration":{to_nanoseconds(prefill)},"eval_count":{event.num_tokens},'
                f'"eval_duration":{to_nanoseconds(decode)}')


def ollama_answer_json(response: OllamaResponseRenderer, output: GenerationOutput,
                       parser: ResponseParserProtocol | None, stop_strings_to_remove: Sequence[str]) -> str:
    """Render a whole response."""
    text = thinking = ""
    calls: list[str] = []
    num_calls = 0  # with those that are text
    for part in parse_answer(output, parser, stop_strings_to_remove).parts:
        match part:
            case ContentPiece(piece):
                text += piece
            case ReasoningPiece(piece):
                thinking += piece
            case ParsedToolCall():
                if (call_json := ollama_call_json(num_calls, part)) is None:
                    text += part.arguments
                else:
                    calls.append(call_json)
                num_calls += 1
    end_fields = response.render_end_fields(output.final_event, len(output.validated_request.request.prompt))
    return response.to_json(end_fields, text, thinking, calls, output.tokens if response.logprob_tokenizer else ())


class OllamaStreamRenderer(AnswerStreamRenderer):
    """Renderer of a stream: a line for each piece of text or reasoning and for each call, and one with the end.
    Logprobs of tokens without text, such as those within a call, come with the next line."""

    keepalive_seconds = None  # its clients read a comment as JSON
    __slots__ = ("_arguments", "_call_name", "_response", "_unsent_tokens")

    def __init__(self, response: OllamaResponseRenderer, num_prompt_tokens: int, stop_strings_to_remove: Sequence[str],
                 parser: ResponseParserProtocol | None) -> None:
        super().__init__(render_error_line, num_prompt_tokens, stop_strings_to_remove, parser)
        self._response = response
        self._call_name = self._arguments = ""  # of the call that is being read
        self._unsent_tokens: list[TokenEvent] = []  # whose logprobs were not sent

    def _render_parts(self, parts: Sequence[ResponsePart], token: TokenEvent | None) -> str:
        if token is not None and self._response.logprob_tokenizer is not None:
            self._unsent_tokens.append(token)
        return super()._render_parts(parts, token)

    def _render_text(self, text: str) -> str:
        return self._render_line(NOT_DONE, text)

    def _render_reasoning(self, text: str) -> str:
        return self._render_line(NOT_DONE, thinking=text)

    def _render_call_opening(self, name: str) -> str:
        self._call_name, self._arguments = name, ""
        return ""

    def _render_arguments(self, text: str) -> str:
        self._arguments += text
        return ""

    def _render_call_end(self) -> str:
        call_json = ollama_call_json(self._num_tool_calls - 1, ParsedToolCall(self._call_name, self._arguments))
        return self._render_text(self._arguments) if call_json is None else self._render_line(NOT_DONE,
                                                                                              calls=[call_json])

    def _render_answer_end(self, event: FinishedEvent) -> str:
        return self._render_line(self._response.render_end_fields(event, self.num_prompt_tokens))

    def _render_line(self, end_fields: str, text: str = "", thinking: str = "", calls: Sequence[str] = ()) -> str:
        tokens, self._unsent_tokens = self._unsent_tokens, []
        return f"{self._response.to_json(end_fields, text, thinking, calls, tokens)}\n"
