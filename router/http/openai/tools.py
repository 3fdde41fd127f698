"""Tools and tool calls in requests, as clients of OpenAI and of text-generation-inference send them.

They are converted to the objects that chat templates take, and a required call (`tool_choice`) to a grammar.
"""

import json
from typing import Annotated, Any, Literal, Self

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
from router.http.transport.body import RequestBody


class TemplatePassthroughBody(RequestBody):
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


class NamedFunction(RequestBody):
    """Name of the function in a `tool_choice`."""

    name: Annotated[str, Field(min_length=1)]


class NamedToolChoice(RequestBody):
    """A `tool_choice` that requires a call of one function."""

    function: NamedFunction


def parse_arguments_object(arguments: object) -> object:
    """Return arguments as the object that templates take: clients repeat the JSON text that they received."""
    if not isinstance(arguments, str):
        return arguments
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


MAX_NAME_CHARS_IN_ERROR = 100  # characters of a name
EMPTY_PARAMETERS_SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


def get_tool_choice_name(tool_choice: str | NamedToolChoice | None) -> str:
    """Return the name of the tool that must be called, or `auto`, `none` or `required`."""
    return tool_choice.function.name if isinstance(tool_choice, NamedToolChoice) else tool_choice or "auto"


def select_template_tools(tools: list[Tool] | None,
                          tool_choice: str | NamedToolChoice | None) -> tuple[dict[str, Any], ...]:
    """Return the tools for the chat template. Raises InvalidTools for an invalid `tool_choice`."""
    name, names = get_tool_choice_name(tool_choice), [tool.function.name for tool in tools or ()]
    if name not in {"auto", "none", "required", *names}:
        raise InvalidTools(
            f"`tool_choice` must be `auto`, `none`, `required` or one of the tools "
            f"({', '.join(names)[:MAX_NAME_CHARS_IN_ERROR] or 'there are none'}), got {name[:MAX_NAME_CHARS_IN_ERROR]}")
    if name == "required" and not names:
        raise InvalidTools("`tool_choice` is `required`, but there are no `tools`")
    return () if name == "none" else tuple(tool.model_dump(exclude_unset=True) for tool in tools or ())


def required_call_grammar(tools: list[Tool] | None, tool_choice: str | NamedToolChoice | None) -> Grammar | None:
    """Return the grammar of a required call, an object with `name` and `arguments`; None if no call is required.
    Raises InvalidRequest for parameters that are not a JSON schema."""
    name = get_tool_choice_name(tool_choice)
    if name in {"auto", "none"}:
        return None
    calls = [tool_call_schema(index, tool.function) for index, tool in enumerate(tools or ())
             if name in {"required", tool.function.name}]
    return make_json_schema_grammar("tools",
                                    {"anyOf": [prefix_schema_references(call, f"#/anyOf/{index}/properties/arguments")
                                               for index, call in enumerate(calls)]})


def tool_call_schema(index: int, function: Function) -> dict[str, Any]:
    location, parameters = f"tools.{index}.function.parameters", function.parameters or EMPTY_PARAMETERS_SCHEMA
    make_json_schema_grammar(location, parameters)  # validates, with the location in the error message
    object_schema = ({"type": "object", "additionalProperties": False} if "properties" in parameters
                     else {"type": "object"})
    return {"type": "object", "required": ["name", "arguments"], "additionalProperties": False,
            "properties": {"name": {"const": function.name}, "arguments": object_schema | parameters}}


def prefix_schema_references(schema: Any, prefix: str) -> Any:
    """Return the schema with `prefix` put before its references, which are relative to the document's root."""
    if isinstance(schema, list):
        return [prefix_schema_references(item, prefix) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: f"{prefix}{value[1:]}" if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else value if key in PLAIN_VALUE_KEYWORDS else prefix_schema_references(value, prefix)
            for key, value in schema.items()}
