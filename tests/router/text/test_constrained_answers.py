"""Parsing of answers that a grammar constrains, in pieces of every size."""

import json
from typing import Any

import pytest

from router.text.constrained_answers import FormattedAnswerParser, RequiredCallParser
from router.text.output_formats import (
    HARMONY_FORMAT,
    HERMES_FORMAT,
    LLAMA_FORMAT,
    ReasoningState,
    get_output_syntax,
)
from router.text.response_parser import (
    ArgumentsPiece,
    ContentPiece,
    ParsedToolCall,
    ReasoningPiece,
    ToolCallOpening,
    parse_complete_response,
)

ARGUMENTS = {"city": "Paris", "days": 2, "note": "a \"b\" </tool_cal {x} \u00e9"}
WEATHER_JSON = json.dumps({"name": "get_weather", "arguments": ARGUMENTS}, ensure_ascii=False)
STOP_JSON = '{"name": "stop", "arguments": {}}'
WEATHER_CALL = ParsedToolCall("get_weather", json.dumps(ARGUMENTS, ensure_ascii=False))
STOP_CALL = ParsedToolCall("stop", "{}")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(("text", "parts"), [
    (WEATHER_JSON, [WEATHER_CALL]), (f" {STOP_JSON}<|im_end|>", [STOP_CALL]),
    ('{ "name":"g" ,"arguments" : {"a": {"b": "}\\"{"}} } rest',
     [ParsedToolCall("g", '{"a": {"b": "}\\"{"}}')]),
    ('{"name": "g", "arguments": {"a": [1', [ParsedToolCall("g", '{"a": [1')]),
    ('{"name": "\\u00e9\\"", "arguments": {}}', [ParsedToolCall('\u00e9"', "{}")]),
    ('{"name": "g', [ContentPiece('{"name": "g')]), ('{"name": "g", "arguments": [1]}', [ContentPiece(
        '{"name": "g", "arguments": [1]}')]), ("[1]", [ContentPiece("[1]")]), ("", [])])
def test_required_call_is_parsed_in_pieces_of_any_size(text: str, parts: list[Any], size: int) -> None:
    pieces = [text[place:place + size] for place in range(0, len(text), size)]
    assert parse_complete_response(RequiredCallParser(), pieces) == parts


def test_arguments_of_a_required_call_are_returned_as_they_come() -> None:
    parser = RequiredCallParser()
    assert parser.feed('{"name": "g", "arguments":') == []
    assert parser.feed(' {"a"') == [ToolCallOpening("g"), ArgumentsPiece('{"a"')]
    assert parser.feed(": 1") == [ArgumentsPiece(": 1")]
    assert parser.feed("}}") == [ArgumentsPiece("}")]
    assert [*parser.feed("more"), *parser.finish()] == []


@pytest.mark.parametrize(("state", "text", "parts"), [
    ("possible", "<think>\nHm</think>\n<tool_call>\n" + STOP_JSON, [ReasoningPiece("\nHm"), STOP_CALL]),
    ("possible", STOP_JSON, [STOP_CALL]), ("open", f"H</thi</think>{STOP_JSON}", [ReasoningPiece("H</thi"), STOP_CALL]),
    ("open", "Hm</th", [ReasoningPiece("Hm</th")]), ("possible", " <th", [ContentPiece(" <th")]),
    ("possible", "<think>a</think><tool", [ReasoningPiece("a"), ContentPiece("<tool")]),
    ("closed", f" {STOP_JSON}", [STOP_CALL]),
    ("possible", '{"name": "g", "arguments": {"a": "<think></think>"}}',
     [ParsedToolCall("g", '{"a": "<think></think>"}')])])
def test_reasoning_precedes_a_required_call(state: str, text: str, parts: list[Any]) -> None:
    """What looks like reasoning within the arguments belongs to them."""
    for pieces in ([text], [*text], [text[:7], text[7:]]):
        parser = RequiredCallParser(get_output_syntax(HERMES_FORMAT), ReasoningState(state), "<tool_call>\n")
        assert parse_complete_response(parser, pieces) == parts


@pytest.mark.parametrize(("shape", "state", "text", "parts"), [
    (HERMES_FORMAT, "possible", '<think>\nHm</think>\n\n{"a": "<think>"}',
     [ReasoningPiece("\nHm"), ContentPiece('{"a": "<think>"}')]),
    (HERMES_FORMAT, "possible", " x <tool_call>", [ContentPiece(" x <tool_call>")]),
    (HERMES_FORMAT, "closed", "<think>x</think>", [ContentPiece("<think>x</think>")]),
    (HERMES_FORMAT, "open", "Hm</think>", [ReasoningPiece("Hm")]), (HERMES_FORMAT, "possible", "", []),
    (HARMONY_FORMAT, "possible", '<|channel|>final<|message|>{"a": "<|end|>"}', [ContentPiece('{"a": "<|end|>"}')]),
    (HARMONY_FORMAT, "possible",
     "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>[1]",
     [ReasoningPiece("Hm"), ContentPiece("[1]")]),
    (HARMONY_FORMAT, "possible", "<|channel|>fin", [ContentPiece("<|channel|>fin")]),
    (LLAMA_FORMAT, "possible", " <think>", [ContentPiece(" <think>")])])
def test_nothing_but_reasoning_is_looked_for_in_an_answer_with_a_format(shape: Any, state: str, text: str,
                                                                        parts: list[Any]) -> None:
    for pieces in ([text], [*text], [text[:7], text[7:]]):
        parser = FormattedAnswerParser(get_output_syntax(shape), ReasoningState(state))
        assert parse_complete_response(parser, pieces) == parts
