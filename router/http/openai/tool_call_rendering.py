"""Rendering of answers with reasoning and tool calls as OpenAI's JSON, whole or as a stream. text/response_parser.py
parses the text of the model."""

import secrets
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quoted

from router.engine.output_stream import FinishedEvent, TokenEvent
from router.http.openai.answer_parts import COMPLETED_FINISH_REASONS, AnswerStreamRenderer, parse_answer
from router.http.openai.rendering import (
    ChatOutputOptions,
    OpenAIResponseDialect,
    RenderedChoice,
    ResponseMetadata,
    chat_choice_json,
    delta_prefix,
    get_finish_reason,
    logprobs_json,
)
from router.http.transport.services import GenerationOutput
from router.text.response_parser import (
    ArgumentsPiece,
    ContentPiece,
    ParsedToolCall,
    ReasoningPiece,
    ResponseParserProtocol,
    ResponsePart,
    ToolCallStart,
)


def chat_finish_reason(final_event: FinishedEvent, num_tool_calls: int, dialect: OpenAIResponseDialect) -> str:
    reason = get_finish_reason(final_event, dialect)
    return (dialect.tool_calls_finish_reason if num_tool_calls and reason in COMPLETED_FINISH_REASONS
            else dialect.finish_reasons[reason])


def tool_call_json(name: str, arguments: str, index: int | None = None, call_id: str = "") -> str:
    """Render a tool call, with a new id unless one is given; in a stream it has an `index`. `description` is there
    because some clients look for it."""
    index_field = "" if index is None else f'"index":{index},'
    call_id = call_id or f"call_{secrets.token_hex(12)}"
    return (f'{{{index_field}"id":"{call_id}","type":"function","function":{{"description":null,'
            f'"name":{quoted(name)},"arguments":{quoted(arguments)}}}}}')


def reasoning_fields(text: str) -> str:
    """Render reasoning under both names that clients read."""
    return f'"reasoning":{quoted(text)},"reasoning_content":{quoted(text)}'


def tool_chat_choice_json(metadata: ResponseMetadata, index: int, output: GenerationOutput,
                          output_options: ChatOutputOptions, parser: ResponseParserProtocol) -> RenderedChoice:
    answer = parse_answer(output, parser, output_options.stop_strings_to_remove)
    tool_calls = [tool_call_json(call.name, call.arguments) for call in answer.tool_calls]
    text, reasoning = answer.text, answer.reasoning
    fields = ['"role":"assistant"']
    if text or not tool_calls or metadata.dialect.has_null_content:
        fields.append(f'"content":{quoted(text) if text or not tool_calls else "null"}')
    if reasoning:
        fields.append(reasoning_fields(reasoning))
    if tool_calls:
        fields.append(f'"tool_calls":[{",".join(tool_calls)}]')
    message = f"{{{','.join(fields)}{metadata.dialect.refusal_field}}}"
    finish_reason = chat_finish_reason(output.final_event, len(tool_calls), metadata.dialect)
    return RenderedChoice(chat_choice_json(index, output, output_options, message, finish_reason),
                          answer.num_reasoning_tokens if output_options.counts_reasoning else None)


class OpenAIToolChatStreamRenderer(AnswerStreamRenderer):
    """Renderer of one choice in a chat's stream, with reasoning and tool calls. A call is sent as its arguments
    come, where the parser returns them so."""

    __slots__ = ("_delta_prefix", "_dialect", "_output_options", "_role_field")

    def __init__(self, metadata: ResponseMetadata, index: int, num_prompt_tokens: int,
                 output_options: ChatOutputOptions, parser: ResponseParserProtocol) -> None:
        super().__init__(metadata.render_error_chunk, num_prompt_tokens, output_options.stop_strings_to_remove, parser)
        self._delta_prefix = delta_prefix(metadata, index)
        self._output_options = output_options
        self._role_field = '"role":"assistant"'  # only in the first chunk
        self._dialect = metadata.dialect

    def _render_parts(self, parts: Sequence[ResponsePart], token: TokenEvent | None) -> str:
        deltas = [self._render_part(part) for part in parts]
        if not deltas and token is not None and (
                self._output_options.includes_logprobs or self._output_options.returns_token_ids):
            deltas = [""]
        return "".join(self._render_delta_chunk(delta, None if place else token) for place, delta in enumerate(deltas))

    def _render_part(self, part: ResponsePart) -> str:
        match part:
            case ContentPiece(text):
                return f'"content":{quoted(text)}'
            case ReasoningPiece(text):
                return reasoning_fields(text)
            case ArgumentsPiece(text):
                return (f'"tool_calls":[{{"index":{self._num_tool_calls - 1},'
                        f'"function":{{"arguments":{quoted(text)}}}}}]')
            case ToolCallStart(name):
                call = tool_call_json(name, "", self._num_tool_calls)
            case ParsedToolCall(name, arguments):
                call = tool_call_json(name, arguments, self._num_tool_calls)
        self._num_tool_calls += 1
        return f'"tool_calls":[{call}]'

    def _render_answer_end(self, event: FinishedEvent) -> str:
        if self._output_options.counts_reasoning:
            self.num_reasoning_tokens = self._stripper.num_reasoning_tokens
        return self._render_delta_chunk("", None, f'"{chat_finish_reason(event, self._num_tool_calls, self._dialect)}"')

    def _render_delta_chunk(self, content_field: str, token: TokenEvent | None,
                            finish_reason_json: str = "null") -> str:
        delta = f"{{{','.join([given for given in (self._role_field, content_field) if given])}}}"
        self._role_field = ""
        logprobs = logprobs_json([token], self._output_options)
        return (f'{self._delta_prefix}{delta},"logprobs":{logprobs},'
                f'"finish_reason":{finish_reason_json}}}],"usage":null}}\n\n')
