"""Tools and tool calls in the requests of chats, and their `tool_choice`. Tools are converted to the objects that chat
templates take, and a required call to a grammar; tool_call_rendering.py renders the calls of answers."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
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

from router.errors import InvalidTools
from router.grammars.parameters import PLAIN_VALUE_KEYWORDS, Grammar, make_json_schema_grammar
from router.http.transport.body import BodyModel, LenientBodyModel

MAX_NAME_CHARS_IN_ERROR = 100  # characters of a name
MAX_FUNCTION_NAME_CHARACTERS = 256  # OpenAI's API allows 64
MAX_ARGUMENT_VALUES = 16_384  # in the JSON text of one call's arguments
TOOL_CHOICE_OPTIONS = ("auto", "none", "required")
FunctionName = Annotated[str, Field(min_length=1, max_length=MAX_FUNCTION_NAME_CHARACTERS)]
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

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(TemplatePassthroughBody):
    """A tool that the model may call; every tool is a function."""

    type: Literal["function"] = "function"
    function: Function


class NamedFunction(LenientBodyModel):
    """Name of the function in a `tool_choice`."""

    name: FunctionName


class NamedToolChoice(LenientBodyModel):
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
