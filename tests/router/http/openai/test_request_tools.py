"""Tools in requests: grammar of the allowed tool calls, schemas, and arguments of earlier calls."""

import json
from typing import Any

import pytest

from router.errors import InvalidRequest, InvalidTools
from router.grammars.compiler_process import compile_grammar, load_tokenizer
from router.http.openai.request_tools import (
    MAX_FUNCTION_NAME_CHARACTERS,
    Function,
    NamedToolChoice,
    Tool,
    parse_arguments_object,
    required_call_grammar,
    select_template_tools,
)
from router.text.tokenizer import create_byte_tokenizer

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


@pytest.mark.parametrize("name", ["auto", "none", "required"])
def test_function_may_have_the_name_of_an_option(name: str) -> None:
    tools = [make_tool("paint"), make_tool(name)]
    choice = NamedToolChoice.model_validate({"function": {"name": name}})
    assert len(select_template_tools(tools, choice)) == 2
    [call] = get_allowed_calls(tools, choice)
    assert call["name"] == {"const": name}
    with pytest.raises(InvalidTools, match=f"one of the tools .paint., got {name}"):
        select_template_tools(tools[:1], choice)


def test_schema_references_are_moved_into_the_call_grammar() -> None:
    place = "#/anyOf/1/properties/arguments/$defs/colour"
    _, paint = get_allowed_calls([make_tool("stop"), make_tool("paint", PAINT_PARAMETERS)], "required")
    assert paint["arguments"]["properties"]["colour"] == {"$ref": place}
    values = {"properties": {"a": {"enum": [{"$ref": "#/x"}]}}}
    assert get_allowed_calls([make_tool("x", values)], "x")[0]["arguments"]["properties"] == values["properties"]


@pytest.mark.parametrize(("schema", "reference"), [
    ({"properties": {"a": {"$ref": "#name"}}, "$defs": {"x": {"$anchor": "name"}}}, "#name"),
    ({"$id": "http://x.org/y", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}}, "#/$defs/x"),
    ({"properties": {"a": {"$ref": ""}}}, "#/anyOf/0/properties/arguments"),
    ({"properties": {"a": {"$ref": "#"}}}, "#/anyOf/0/properties/arguments")], ids=str)
def test_only_references_to_the_root_are_moved(schema: dict[str, Any], reference: str) -> None:
    """Regression: names of anchors were moved, too, and lost."""
    grammar = required_call_grammar([make_tool("paint", schema)], "required")
    assert grammar is not None
    assert json.loads(grammar.source)["anyOf"][0]["properties"]["arguments"]["properties"]["a"]["$ref"] == reference
    compile_grammar(load_tokenizer(create_byte_tokenizer().path_or_content), grammar.kind, grammar.source)


def test_reference_fault_names_the_place_in_the_tool() -> None:
    """Regression: the error named a place in the grammar of the call."""
    tools = [make_tool("stop"), make_tool("paint", {"properties": {"a": {"$ref": "#/$defs/x"}}})]
    grammar = required_call_grammar(tools, "required")
    assert grammar is not None
    assert grammar.reference_fault == ("the reference `#/$defs/x` at `properties.a.$ref` leads to no part of the JSON "
                                       "schema of the function `paint`")


def test_invalid_tool_schema_is_rejected_with_its_path() -> None:
    with pytest.raises(InvalidRequest, match=r"`tools.1.function.parameters.x-guidance` is not supported"):
        required_call_grammar([make_tool("stop"), make_tool("paint", {"x-guidance": {}})], "required")


def test_long_tool_names_are_shortened_in_errors() -> None:
    with pytest.raises(InvalidTools, match=r"x{100}\), got y{100}$"):
        select_template_tools([make_tool("x" * MAX_FUNCTION_NAME_CHARACTERS)], "y" * 5000)


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000, '{"a":' * 100_000])
def test_invalid_argument_json_stays_text(text: str) -> None:
    """Regression: arguments that were nested too deeply caused an internal server error."""
    assert parse_arguments_object(text) == text


def test_arguments_of_too_many_values_are_refused() -> None:
    """600,000 lists in a string of 1.8 MB took a second of the processor."""
    with pytest.raises(ValueError, match="must hold at most 16384 values, got 16385"):
        parse_arguments_object(f'{{"a":[{",".join(["1"] * 16384)}]}}')
