"""Answers as Anthropic's JSON: whole messages, and the events of a stream. Both have the same content blocks. The JSON
is ASCII."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from pydantic_core import from_json

from router.engine.output_stream import FinishedEvent
from router.http.openai.answer_parts import COMPLETED_FINISH_REASONS, Answer, AnswerStreamRenderer
from router.http.openai.rendering import OPENAI_DIALECT, get_finish_reason
from router.http.transport.error_responses import AnthropicErrorReply
from router.request import FinishReason
from router.text.response_parser import ContentPiece, ReasoningPiece, ResponseParserProtocol, WholePart

# Anthropic has no stop reason for a timeout; `max_tokens` also means that the text was cut off.
# What stops an answer and is no stop sequence is a token.
STOP_REASONS = {FinishReason.END_TOKEN: "end_turn", FinishReason.STOP_STRING: "end_turn",
                FinishReason.LENGTH: "max_tokens", FinishReason.TIMEOUT: "max_tokens"}
UNKNOWN_RELEASE = "1970-01-01T00:00:00Z"  # Anthropic's value for a model whose release date is not known


@dataclass(frozen=True, slots=True)
class MessageMetadata:
    """Metadata of a message, and the options of its format."""

    id: str
    model: str
    num_prompt_tokens: int
    stop_sequences: Sequence[str]  # of the request
    shows_thinking: bool  # if not, the blocks of reasoning are empty

    def message_json(self, content: str, stop_fields: str, usage: str) -> str:
        return (f'{{"id":"{self.id}","type":"message","role":"assistant","model":{quoted(self.model)},'
                f'"content":[{content}],{stop_fields},"usage":{usage}}}')

    def usage_json(self, event: FinishedEvent) -> str:
        """Render the numbers of tokens. As Anthropic counts, cached tokens of the prompt are no input tokens."""
        num_cached = event.timeline.num_prefix_hit_tokens
        return (f'{{"input_tokens":{self.num_prompt_tokens - num_cached},"cache_creation_input_tokens":0,'
                f'"cache_read_input_tokens":{num_cached},"output_tokens":{event.num_tokens}}}')

    def stop_fields(self, event: FinishedEvent, *, has_tool_calls: bool) -> str:
        """Render why the answer ended. Of several stop sequences that end it, the longest counts."""
        reason = get_finish_reason(event, OPENAI_DIALECT)
        is_stopped = reason is FinishReason.STOP_STRING
        matched = max((string for string in self.stop_sequences if is_stopped and event.text.endswith(string)),
                      key=len, default=None)
        if has_tool_calls and reason in COMPLETED_FINISH_REASONS:
            return '"stop_reason":"tool_use","stop_sequence":null'
        if matched is not None:
            return f'"stop_reason":"stop_sequence","stop_sequence":{quoted(matched)}'
        return f'"stop_reason":"{STOP_REASONS[reason]}","stop_sequence":null'


def answer_json(metadata: MessageMetadata, answer: Answer) -> str:
    return metadata.message_json(
        ",".join(block_json(part, shows_thinking=metadata.shows_thinking) for part in answer.parts),
        metadata.stop_fields(answer.final_event, has_tool_calls=bool(answer.tool_calls)),
        metadata.usage_json(answer.final_event))


def block_json(part: WholePart, *, shows_thinking: bool) -> str:
    if isinstance(part, ContentPiece):
        return f'{{"type":"text","text":{quoted(part.text)}}}'
    if isinstance(part, ReasoningPiece):
        return f'{{"type":"thinking","thinking":{quoted(part.text if shows_thinking else "")},"signature":""}}'
    return tool_use_json(part.name, tool_input_json(part.arguments))


def tool_use_json(name: str, input_object: str) -> str:
    return f'{{"type":"tool_use","id":"toolu_{secrets.token_hex(12)}","name":{quoted(name)},"input":{input_object}}}'


def tool_input_json(arguments: str) -> str:
    """Return the arguments of a call as an object, which for a call that was cut off has the members that are complete.
    Anthropic's client makes the same object of the pieces of a stream."""
    try:
        return json.dumps(from_json(arguments, allow_partial=True), allow_nan=False)
    except ValueError:  # there are none yet, or they hold a number that JSON cannot
        return "{}"


def model_json(name: str, max_input_tokens: int) -> dict[str, Any]:
    return {"type": "model", "id": name, "display_name": name, "created_at": UNKNOWN_RELEASE, "lifecycle": "active",
            "max_input_tokens": max_input_tokens}


def event_json(kind: str, fields: str = "") -> str:
    return f'event: {kind}\ndata: {{"type":"{kind}"{fields}}}\n\n'


def error_event(error: Exception) -> str:
    return f"event: error\ndata: {AnthropicErrorReply.from_exception(error).to_json()}\n\n"


class AnthropicStreamRenderer(AnswerStreamRenderer):
    """Renderer of the events of a message. Adjacent pieces of the same kind are one content block."""

    __slots__ = ("_metadata", "_num_blocks", "_open_block")

    def __init__(self, metadata: MessageMetadata, parser: ResponseParserProtocol | None) -> None:
        super().__init__(error_event, metadata.num_prompt_tokens, metadata.stop_sequences, parser)
        self._metadata = metadata
        self._num_blocks = 0
        self._open_block = ""  # type of the block that is not closed yet; empty if there is none

    def render_opening(self) -> str:
        """Render the message without content. How much of its prompt is cached is not known yet."""
        usage = (f'{{"input_tokens":{self.num_prompt_tokens},"cache_creation_input_tokens":null,'
                 '"cache_read_input_tokens":null,"output_tokens":0}')
        message = self._metadata.message_json("", '"stop_reason":null,"stop_sequence":null', usage)
        return event_json("message_start", f',"message":{message}') + event_json("ping")

    def _render_text(self, text: str) -> str:
        return self._start_block("text", '{"type":"text","text":""}') + self._render_delta("text_delta", "text", text)

    def _render_reasoning(self, text: str) -> str:
        start = self._start_block("thinking", '{"type":"thinking","thinking":"","signature":""}')
        return start + (self._render_delta("thinking_delta", "thinking", text) if self._metadata.shows_thinking else "")

    def _render_call_opening(self, name: str) -> str:
        return self._start_block("tool_use", tool_use_json(name, "{}"))

    def _render_arguments(self, text: str) -> str:
        return self._render_delta("input_json_delta", "partial_json", text)

    def _render_call_end(self) -> str:
        return self._end_block()

    def _render_answer_end(self, event: FinishedEvent) -> str:
        stop_fields = self._metadata.stop_fields(event, has_tool_calls=bool(self._num_tool_calls))
        return (self._end_block()
                + event_json("message_delta", f',"delta":{{{stop_fields}}},"usage":{self._metadata.usage_json(event)}')
                + event_json("message_stop"))

    def _start_block(self, kind: str, block: str) -> str:
        """Render the start of a block and the end of the one before, unless that is of the same kind."""
        if kind == self._open_block:
            return ""
        end = self._end_block()
        self._open_block = kind
        self._num_blocks += 1
        return end + event_json("content_block_start", f',"index":{self._num_blocks - 1},"content_block":{block}')

    def _end_block(self) -> str:
        kind, self._open_block = self._open_block, ""
        if not kind:
            return ""
        signature = self._render_delta("signature_delta", "signature", "") if kind == "thinking" else ""
        return signature + event_json("content_block_stop", f',"index":{self._num_blocks - 1}')

    def _render_delta(self, kind: str, field: str, text: str) -> str:
        return event_json("content_block_delta", f',"index":{self._num_blocks - 1},"delta":{{"type":"{kind}",'
                          f'"{field}":{quoted(text)}}}')
