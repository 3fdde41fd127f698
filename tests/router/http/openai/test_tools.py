"""Grammar of the allowed tool calls when an answer must be a call."""

import json
from typing import Any

import pytest

from router.errors import InvalidRequest, ToolsFailed
from router.http.openai.tools import Function, NamedTool, Tool, dictated, object_of, offered

PAINT = {"type": "object", "properties": {"colour": {"$ref": "#/$defs/colour"}}, "$defs": {"colour": {"enum": ["red"]}}}


def tool(name: str, parameters: dict[str, Any] | None = None) -> Tool:
    return Tool(function=Function(name=name, parameters=parameters))


def calls(tools: list[Tool], choice: Any) -> list[Any]:
    grammar = dictated(tools, choice)
    assert grammar is not None
    return [call["properties"] for call in json.loads(grammar.source)["anyOf"]]


def test_any_tool_or_the_one_that_is_named() -> None:
    tools = [tool("paint", PAINT), tool("stop")]
    assert [call["name"] for call in calls(tools, "required")] == [{"const": "paint"}, {"const": "stop"}]
    named = NamedTool.model_validate({"type": "function", "function": {"name": "stop"}})
    for choice in ("stop", named):
        assert [call["name"] for call in calls(tools, choice)] == [{"const": "stop"}]
    assert [dictated(tools, choice) for choice in (None, "auto", "none")] == [None] * 3


def test_arguments_are_those_of_the_schema_and_no_others() -> None:
    stop, paint = calls([tool("stop"), tool("paint", PAINT)], "required")
    assert stop["arguments"] == {"type": "object", "properties": {}, "additionalProperties": False}
    assert paint["arguments"]["additionalProperties"] is False
    assert calls([tool("x", {"type": "object"})], "required")[0]["arguments"] == {"type": "object"}
    opened = {"properties": {}, "additionalProperties": True}
    assert calls([tool("x", opened)], "required")[0]["arguments"] == {"type": "object", **opened}


def test_references_are_to_where_the_schema_stands_now() -> None:
    place = "#/anyOf/1/properties/arguments/$defs/colour"
    _, paint = calls([tool("stop"), tool("paint", PAINT)], "required")
    assert paint["arguments"]["properties"]["colour"] == {"$ref": place}
    values = {"properties": {"a": {"enum": [{"$ref": "#/x"}]}}}
    assert calls([tool("x", values)], "x")[0]["arguments"]["properties"] == values["properties"]


def test_what_is_no_schema_is_told_by_its_place() -> None:
    with pytest.raises(InvalidRequest, match=r"`tools.1.function.parameters.x-guidance` is not supported"):
        dictated([tool("stop"), tool("paint", {"x-guidance": {}})], "required")


def test_of_long_names_only_the_beginning_is_told() -> None:
    with pytest.raises(ToolsFailed, match=r"x{100}\), got y{100}$"):
        offered([tool("x" * 5000)], "y" * 5000)


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000, '{"a":' * 100_000])
def test_arguments_that_are_no_object_stay_the_text_they_are(text: str) -> None:
    """Regression: arguments that were nested too deeply caused an internal server error."""
    assert object_of(text) == text
