"""Tools and tool calls in requests, and answers with reasoning and tool calls as OpenAI's JSON. Tools are converted to
the objects that chat templates take, and a required call (`tool_choice`) to a grammar; text/response_parser.py parses
the text of the model."""

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from json.encoder import encode_basestring_ascii as quoted
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from router.engine.stream import FinishedEvent, TokenEvent
from router.errors import InvalidTools
from router.grammars.parameters import PLAIN_VALUE_KEYWORDS, Grammar, make_json_schema_grammar
from router.http.openai.answers import COMPLETED_FINISH_REASONS, AnswerStreamRenderer, read_answer
from router.http.openai.rendering import (
    ChatOutputOptions,
    OpenAIWords,
    RenderedChoice,
    ResponseMetadata,
    chat_choice_json,
    delta_prefix,
    get_finish_reason,
    logprobs_json,
)
from router.http.transport.body import BodyModel, ReportingBodyModel
from router.http.transport.services import GenerationOutput
from router.text.response_parser import (
    ArgumentsPiece,
    ContentPiece,
    ParsedToolCall,
    ReasoningPiece,
    ResponseParser,
    ResponsePart,
    ToolCallOpening,
)

MAX_NAME_CHARS_IN_ERROR = 100  # characters of a name
MAX_ARGUMENT_VALUES = 16_384  # in the JSON text of one call's arguments
TOOL_CHOICE_OPTIONS = ("auto", "none", "required")
EMPTY_PARAMETERS_SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


class TemplatePassthroughBody(BodyModel):
    """Base class of objects that reach the template unchanged: with unknown fields and in the client's order, since
    templates render them as JSON."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    _field_order: tuple[str, ...] = ()  # of the fields, in the client's order

    @model_validator(mode="wrap")
    @classmethod
    def remember_field_order(cls, value: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        built = validate(value)
        built._field_order = tuple(value) if isinstance(value, dict) else ()
        return built

    @model_serializer(mode="wrap")
    def serialize_in_field_order(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        return {name: fields[name] for name in self._field_order if name in fields} | fields


class Function(TemplatePassthroughBody):
    """Definition of a function that the model may call: its name, description and JSON schema of parameters."""

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(TemplatePassthroughBody):
    """A tool that the model may call; every tool is a function."""

    type: Literal["function"] = "function"
    function: Function


class NamedFunction(ReportingBodyModel):
    """Name of the function in a `tool_choice`."""

    name: Annotated[str, Field(min_length=1)]


class NamedToolChoice(ReportingBodyModel):
    """A `tool_choice` that requires a call of one function."""

    type: Literal["function"] = "function"
    function: NamedFunction


def parse_arguments_object(arguments: object) -> object:
    """Return arguments as the object that templates take: clients repeat the JSON text that they received. Raises
    ValueError for more than MAX_ARGUMENT_VALUES values."""
    if not isinstance(arguments, str) or (arguments.strip()[:1], arguments.strip()[-1:]) != ("{", "}"):
        return arguments
    if (num_values := sum(map(arguments.count, ",[{"))) > MAX_ARGUMENT_VALUES:
        raise ValueError(f"must hold at most {MAX_ARGUMENT_VALUES} values, got {num_values}")
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


class CalledFunction(TemplatePassthroughBody):
    """Name and arguments of a call that an earlier message of the chat made."""

    name: str
    arguments: Annotated[dict[str, Any] | str, BeforeValidator(parse_arguments_object)] = ""


class ToolCall(TemplatePassthroughBody):
    """A tool call in an earlier message of the chat."""

    function: CalledFunction


def get_chosen_function(tool_choice: str | NamedToolChoice | None) -> str | None:
    """Return the name of the function that must be called; None if no certain one is. A text that is no option names a
    function, too; an object always does, so that a function may have the name of an option."""
    if isinstance(tool_choice, NamedToolChoice):
        return tool_choice.function.name
    return tool_choice if tool_choice and tool_choice not in TOOL_CHOICE_OPTIONS else None


def get_tool_choice_option(tool_choice: str | NamedToolChoice | None) -> str:
    """Return `auto`, `none` or `required`; a call of a certain function is required."""
    if isinstance(tool_choice, str) and tool_choice in TOOL_CHOICE_OPTIONS:
        return tool_choice
    return "required" if tool_choice else "auto"


def select_template_tools(tools: list[Tool] | None,
                          tool_choice: str | NamedToolChoice | None) -> tuple[dict[str, Any], ...]:
    """Return the tools for the chat template. Raises InvalidTools for an invalid `tool_choice`."""
    name, names = get_chosen_function(tool_choice), [tool.function.name for tool in tools or ()]
    option = get_tool_choice_option(tool_choice)
    if name is not None and name not in names:
        raise InvalidTools(
            f"`tool_choice` must be `auto`, `none`, `required` or one of the tools "
            f"({', '.join(names)[:MAX_NAME_CHARS_IN_ERROR] or 'there are none'}), got {name[:MAX_NAME_CHARS_IN_ERROR]}")
    if option == "required" and not names:
        raise InvalidTools("`tool_choice` is `required`, but there are no `tools`")
    return () if option == "none" else tuple(tool.model_dump(exclude_unset=True) for tool in tools or ())


def required_call_grammar(tools: list[Tool] | None, tool_choice: str | NamedToolChoice | None) -> Grammar | None:
    """Return the grammar of a required call, an object with `name` and `arguments`; None if no call is required.
    Raises InvalidRequest for parameters that are not a JSON schema."""
    if get_tool_choice_option(tool_choice) != "required":
        return None
    return make_call_grammar(iterate_function_schemas(tools or (), get_chosen_function(tool_choice)))


class FunctionCallSchema(NamedTuple):
    """A function with the JSON schema of its arguments."""

    name: str
    arguments: dict[str, Any]
    reference_fault: str  # that of the schema, as in Grammar


def make_call_grammar(functions: Iterable[FunctionCallSchema], arguments_key: str = "arguments") -> Grammar:
    """Return the grammar of the JSON of a call of one of these functions."""
    functions = [*functions]
    calls = [{"type": "object", "required": ["name", arguments_key], "additionalProperties": False,
              "properties": {"name": {"const": function.name}, arguments_key: function.arguments}}
             for function in functions]
    grammar = make_json_schema_grammar("tools", {"anyOf": [
        prefix_schema_references(call, f"#/anyOf/{index}/properties/{arguments_key}")
        for index, call in enumerate(calls)]})
    faults = (function.reference_fault for function in functions if function.reference_fault)
    return replace(grammar, reference_fault=next(faults, ""))


def iterate_function_schemas(tools: Sequence[Tool], name: str | None = None) -> Iterator[FunctionCallSchema]:
    """Yield the functions with this name, by default all. Raises InvalidRequest with the place in the request."""
    for index, function in enumerate(tool.function for tool in tools):
        if name in {None, function.name}:
            parameters = function.parameters or EMPTY_PARAMETERS_SCHEMA
            # validates, with the location in the error message
            fault = make_json_schema_grammar(f"tools.{index}.function.parameters", parameters).reference_fault
            object_schema = ({"type": "object", "additionalProperties": False} if "properties" in parameters
                             else {"type": "object"})
            yield FunctionCallSchema(function.name, object_schema | parameters, fault and (
                f"{fault} of the function `{function.name[:MAX_NAME_CHARS_IN_ERROR]}`"))


def prefix_schema_references(schema: Any, prefix: str) -> Any:
    """Return the schema with `prefix` put before its references that are relative to the document's root. Names of
    anchors are not, nor are references within a part that has an id."""
    if isinstance(schema, list):
        return [prefix_schema_references(item, prefix) for item in schema]
    if not isinstance(schema, dict) or isinstance(schema.get("$id"), str):
        return schema
    return {key: f"{prefix}{value[1:]}" if key == "$ref" and isinstance(value, str) and (
                value in {"", "#"} or value.startswith("#/"))
            else value if key in PLAIN_VALUE_KEYWORDS else prefix_schema_references(value, prefix)
            for key, value in schema.items()}


def chat_finish_reason(final_event: FinishedEvent, num_tool_calls: int, words: OpenAIWords) -> str:
    reason = get_finish_reason(final_event, words)
    return (words.tool_calls_finish_reason if num_tool_calls and reason in COMPLETED_FINISH_REASONS
            else words.finish_reasons[reason])


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
                          output_options: ChatOutputOptions, parser: ResponseParser) -> RenderedChoice:
    answer = read_answer(output, parser, output_options.trimmed_stop_strings)
    tool_calls = [tool_call_json(call.name, call.arguments) for call in answer.tool_calls]
    text, reasoning = answer.text, answer.reasoning
    fields = ['"role":"assistant"']
    if text or not tool_calls or metadata.words.has_null_content:
        fields.append(f'"content":{quoted(text) if text or not tool_calls else "null"}')
    if reasoning:
        fields.append(reasoning_fields(reasoning))
    if tool_calls:
        fields.append(f'"tool_calls":[{",".join(tool_calls)}]')
    message = f"{{{','.join(fields)}{metadata.words.refusal_field}}}"
    finish_reason = chat_finish_reason(output.final_event, len(tool_calls), metadata.words)
    return RenderedChoice(chat_choice_json(index, output, output_options, message, finish_reason),
                          answer.num_reasoning_tokens if output_options.counts_reasoning else None)


class OpenAIToolChatStreamRenderer(AnswerStreamRenderer):
    """Renderer of one choice in a chat's stream, with reasoning and tool calls. A call is sent as its arguments
    come, where the parser returns them so."""

    __slots__ = ("_delta_prefix", "_output_options", "_role_field", "_words")

    def __init__(self, metadata: ResponseMetadata, index: int, num_prompt_tokens: int,
                 output_options: ChatOutputOptions, parser: ResponseParser) -> None:
        super().__init__(metadata.render_error_chunk, num_prompt_tokens, output_options.trimmed_stop_strings, parser)
        self._delta_prefix = delta_prefix(metadata, index)
        self._output_options = output_options
        self._role_field = '"role":"assistant"'  # only in the first chunk
        self._words = metadata.words

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
            case ToolCallOpening(name):
                call = tool_call_json(name, "", self._num_tool_calls)
            case ParsedToolCall(name, arguments):
                call = tool_call_json(name, arguments, self._num_tool_calls)
        self._num_tool_calls += 1
        return f'"tool_calls":[{call}]'

    def _render_answer_end(self, event: FinishedEvent) -> str:
        if self._output_options.counts_reasoning:
            self.num_reasoning_tokens = self._stripper.num_reasoning_tokens
        return self._render_delta_chunk("", None, f'"{chat_finish_reason(event, self._num_tool_calls, self._words)}"')

    def _render_delta_chunk(self, content_field: str, token: TokenEvent | None,
                            finish_reason_json: str = "null") -> str:
        delta = f"{{{','.join([given for given in (self._role_field, content_field) if given])}}}"
        self._role_field = ""
        logprobs = logprobs_json([token], self._output_options)
        return (f'{self._delta_prefix}{delta},"logprobs":{logprobs},'
                f'"finish_reason":{finish_reason_json}}}],"usage":null}}\n\n')
