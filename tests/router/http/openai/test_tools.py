"""Grammar of the allowed tool calls when an answer must be a call."""

import json
from typing import Any

import pytest

from router.errors import InvalidRequest, InvalidTools
from router.http.openai.tools import (
    Function,
    NamedToolChoice,
    Tool,
    parse_arguments_object,
    required_call_grammar,
    select_template_tools,
)

PAINT_PARAMETERS = {"type": "object", "properties": {"colour": {"$ref": "#/$defs/colour"}},
                    "$defs": {"colour": {"enum": ["red"]}}}


def make_tool(name: str, parameters: dict[str, Any] | None = None) -> Tool:
    return Tool(function=Function(name=name, parameters=parameters))


def get_allowed_calls(tools: list[Tool], choice: Any) -> list[Any]:
    grammar = required_call_grammar(tools, choice)
    assert grammar is not None
    return [call["properties"] for call in json.loads(grammar.source)["anyOf"]]


def test_grammar_allows_any_tool_or_only_the_named_one() -> None:
    tools = [make_tool("paint", PAINT_PARAMETERS), make_tool("stop")]
    assert [call["name"] for call in get_allowed_calls(tools, "required")] == [{"const": "paint"}, {"const": "stop"}]
    named = NamedToolChoice.model_validate({"type": "function", "function": {"name": "stop"}})
    for choice in ("stop", named):
        assert [call["name"] for call in get_allowed_calls(tools, choice)] == [{"const": "stop"}]
    assert [required_call_grammar(tools, choice) for choice in (None, "auto", "none")] == [None] * 3


def test_arguments_follow_the_schema_and_allow_no_others() -> None:
    stop, paint = get_allowed_calls([make_tool("stop"), make_tool("paint", PAINT_PARAMETERS)], "required")
    assert stop["arguments"] == {"type": "object", "properties": {}, "additionalProperties": False}
    assert paint["arguments"]["additionalProperties"] is False
    assert get_allowed_calls([make_tool("x", {"type": "object"})], "required")[0]["arguments"] == {"type": "object"}
    opened = {"properties": {}, "additionalProperties": True}
    assert get_allowed_calls([make_tool("x", opened)], "required")[0]["arguments"] == {"type": "object", **opened}


def test_schema_references_are_moved_into_the_call_grammar() -> None:
    place = "#/anyOf/1/properties/arguments/$defs/colour"
    _, paint = get_allowed_calls([make_tool("stop"), make_tool("paint", PAINT_PARAMETERS)], "required")
    assert paint["arguments"]["properties"]["colour"] == {"$ref": place}
    values = {"properties": {"a": {"enum": [{"$ref": "#/x"}]}}}
    assert get_allowed_calls([make_tool("x", values)], "x")[0]["arguments"]["properties"] == values["properties"]


def test_invalid_tool_schema_is_rejected_with_its_path() -> None:
    with pytest.raises(InvalidRequest, match=r"`tools.1.function.parameters.x-guidance` is not supported"):
        required_call_grammar([make_tool("stop"), make_tool("paint", {"x-guidance": {}})], "required")


def test_long_tool_names_are_shortened_in_errors() -> None:
    with pytest.raises(InvalidTools, match=r"x{100}\), got y{100}$"):
        select_template_tools([make_tool("x" * 5000)], "y" * 5000)


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000, '{"a":' * 100_000])
def test_invalid_argument_json_stays_text(text: str) -> None:
    """Regression: arguments that were nested too deeply caused an internal server error."""
    assert parse_arguments_object(text) == text
