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

from router.errors import ToolsFailed
from router.grammars.schema import VALUES, Grammar, json_schema
from router.http.transport.body import Foreign


class Given(Foreign):
    """Base class of objects that reach the template unchanged: with unknown fields and in the client's order, since
    templates render them as JSON."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    _names: tuple[str, ...] = ()  # of the fields, in the client's order

    @model_validator(mode="wrap")
    @classmethod
    def keep_order(cls, given: Any, build: ModelWrapValidatorHandler[Self]) -> Self:
        built = build(given)
        built._names = tuple(given) if isinstance(given, dict) else ()
        return built

    @model_serializer(mode="wrap")
    def in_order(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        return {name: fields[name] for name in self._names if name in fields} | fields


class Function(Given):
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Given):
    type: Literal["function"] = "function"
    function: Function


class Named(Foreign):
    name: Annotated[str, Field(min_length=1)]


class NamedTool(Foreign):
    function: Named


def object_of(arguments: object) -> object:
    """Return arguments as the object that templates take: clients repeat the JSON text that they received."""
    if not isinstance(arguments, str):
        return arguments
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return found if isinstance(found, dict) else arguments


class CalledFunction(Given):
    name: str
    arguments: Annotated[dict[str, Any] | str, BeforeValidator(object_of)] = ""


class ToolCall(Given):
    function: CalledFunction


MOST_TOLD = 100  # characters of a name
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


def called_name(choice: str | NamedTool | None) -> str:
    """Return the name of the tool that must be called, or `auto`, `none` or `required`."""
    return choice.function.name if isinstance(choice, NamedTool) else choice or "auto"


def offered(tools: list[Tool] | None, choice: str | NamedTool | None) -> tuple[dict[str, Any], ...]:
    """Return the tools for the chat template. Raises ToolsFailed for an invalid `tool_choice`."""
    name, names = called_name(choice), [tool.function.name for tool in tools or ()]
    if name not in {"auto", "none", "required", *names}:
        raise ToolsFailed(f"`tool_choice` must be `auto`, `none`, `required` or one of the tools "
                          f"({', '.join(names)[:MOST_TOLD] or 'there are none'}), got {name[:MOST_TOLD]}")
    if name == "required" and not names:
        raise ToolsFailed("`tool_choice` is `required`, but there are no `tools`")
    return () if name == "none" else tuple(tool.model_dump(exclude_unset=True) for tool in tools or ())


def dictated(tools: list[Tool] | None, choice: str | NamedTool | None) -> Grammar | None:
    """Return the grammar of a required call, an object with `name` and `arguments`; None if no call is required.
    Raises InvalidRequest for parameters that are not a JSON schema."""
    name = called_name(choice)
    if name in {"auto", "none"}:
        return None
    calls = [call_schema(index, tool.function) for index, tool in enumerate(tools or ())
             if name in {"required", tool.function.name}]
    return json_schema("tools", {"anyOf": [moved(call, f"#/anyOf/{index}/properties/arguments")
                                           for index, call in enumerate(calls)]})


def call_schema(index: int, function: Function) -> dict[str, Any]:
    where, parameters = f"tools.{index}.function.parameters", function.parameters or NO_PARAMETERS
    json_schema(where, parameters)  # validates, with the location in the error message
    closed = {"type": "object", "additionalProperties": False} if "properties" in parameters else {"type": "object"}
    return {"type": "object", "required": ["name", "arguments"], "additionalProperties": False,
            "properties": {"name": {"const": function.name}, "arguments": closed | parameters}}


def moved(schema: Any, place: str) -> Any:
    """Return the schema with `place` prefixed to its references, which are relative to the document's root."""
    if isinstance(schema, list):
        return [moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: f"{place}{value[1:]}" if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else value if key in VALUES else moved(value, place) for key, value in schema.items()}
