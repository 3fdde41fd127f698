"""Parsing of answers that a grammar constrains, in pieces of every size."""

import json
import re
from functools import partial
from typing import Any

import pytest

from router.text import constrained_answer_parsers
from router.text.constrained_answer_parsers import (
    REQUIRED_CALL_OPENING,
    CallsOrTextParser,
    ConstrainedAnswerParser,
    RequiredCallParser,
    begins_call,
)
from router.text.output_formats import (
    BARE_JSON_FORMAT,
    GRANITE_FORMAT,
    HARMONY_FORMAT,
    HERMES_FORMAT,
    LLAMA_FORMAT,
    MISTRAL_NAMED_FORMAT,
    QWEN_CODER_FORMAT,
    REASONING_FIELDS,
    ReasoningState,
    get_output_syntax,
    without_fields,
)
from router.text.response_parser import (
    MAX_OPENING_CHARACTERS,
    ArgumentsPiece,
    ContentPiece,
    OutputFormatParser,
    ParsedToolCall,
    ReasoningPiece,
    ToolCallStart,
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
    assert parser.feed(' {"a"') == [ToolCallStart("g"), ArgumentsPiece('{"a"')]
    assert parser.feed(": 1") == [ArgumentsPiece(": 1")]
    assert parser.feed("}}") == [ArgumentsPiece("}")]
    assert [*parser.feed("more"), *parser.finish()] == []


@pytest.mark.parametrize("is_whole", [True, False])
def test_long_opening_is_looked_for_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch, is_whole: bool) -> None:
    """Regression: it was matched from its beginning after every token of a name without a limit."""
    name, lengths = "n" * 5_000, []

    class RecordingPattern:
        def match(self, text: str) -> re.Match[str] | None:
            lengths.append(len(text))
            return REQUIRED_CALL_OPENING.match(text)
    monkeypatch.setattr(constrained_answer_parsers, "REQUIRED_CALL_OPENING", RecordingPattern())
    text = f'{{"name": "{name}", "arguments": {{"a": 1}}}}' if is_whole else f'{{"name": "{name}'
    parts = parse_complete_response(RequiredCallParser(), text)
    assert parts == [ParsedToolCall(name, '{"a": 1}') if is_whole else ContentPiece(text)]
    assert max(lengths[:-1]) == MAX_OPENING_CHARACTERS + 1
    assert len(lengths) == MAX_OPENING_CHARACTERS + 2


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
        parser = ConstrainedAnswerParser(get_output_syntax(shape), ReasoningState(state))
        assert parse_complete_response(parser, pieces) == parts


# -- calls or a text

OFFERED = [{"type": "function", "function": {"name": name}} for name in ("get_weather", "stop")]
MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call|>", "<|channel|>",
         "<|end|>", "<|python_tag|>", "<|eom_id|>", "<response>", "```", "<function=stop>", "</s>", STOP_JSON)
EITHER_CASES = {
    "hermes": (HERMES_FORMAT, f"<tool_call>\n{STOP_JSON}\n</tool_call>\n<tool_call>\n{WEATHER_JSON}\n</tool_call>",
               [STOP_CALL, WEATHER_CALL]),
    "coder": (QWEN_CODER_FORMAT, "<tool_call>\n<function=stop>\n</function>\n</tool_call>", [STOP_CALL]),
    "llama": (LLAMA_FORMAT, WEATHER_JSON.replace("arguments", "parameters"), [WEATHER_CALL]),
    "bare": (BARE_JSON_FORMAT, WEATHER_JSON, [WEATHER_CALL]),
    "mistral": (MISTRAL_NAMED_FORMAT, "[TOOL_CALLS]stop[ARGS]{}[TOOL_CALLS]stop[ARGS]{}", [STOP_CALL, STOP_CALL]),
    "granite": (GRANITE_FORMAT, f"<|tool_call|>[{STOP_JSON}, {WEATHER_JSON}]", [STOP_CALL, WEATHER_CALL]),
    "harmony": (HARMONY_FORMAT, "<|channel|>commentary to=functions.stop <|constrain|>json<|message|>{}", [STOP_CALL])}


def parse_either(output_format: Any, pieces: list[str], state: ReasoningState = ReasoningState.POSSIBLE) -> list[Any]:
    return parse_complete_response(CallsOrTextParser(
        get_output_syntax(output_format), state, {"get_weather", "stop"}, partial(
            OutputFormatParser, without_fields(output_format, *REASONING_FIELDS), "", OFFERED)), pieces)


@pytest.mark.parametrize("name", EITHER_CASES)
def test_answer_is_calls_or_a_text_as_it_begins(name: str) -> None:
    """Regression: marks within the strings of a formatted answer were read as those of calls and reasoning."""
    output_format, calls, parts = EITHER_CASES[name]
    syntax = get_output_syntax(output_format)
    text = json.dumps({"name": "stop", "note": [f"{mark}x{mark}" for mark in MARKS]}, ensure_ascii=False)
    thoughts, closing = syntax.thoughts or ("", "")
    thinking = f"{thoughts}Hm{closing}{syntax.thoughts_end}" if thoughts else ""
    for size in (1, 3, 7, 10_000):
        for given, expected in ((calls, parts), (syntax.answer_opening + text, [ContentPiece(text)])):
            for prefix, reasoning in (("", []), (thinking, [ReasoningPiece("Hm")] if thinking else [])):
                whole = prefix + given
                pieces = [whole[place:place + size] for place in range(0, len(whole), size)]
                assert parse_either(output_format, pieces) == [*reasoning, *expected]


@pytest.mark.parametrize("text", ['{"name": "other", "parameters": {}}', '{"name": 5}', '{"name": "stop", "x": 1}',
                                  '{"name": "stop", "parameters": [1]}', "[1]", " x", '{"name": "a\\x', "{}", '{"name',
                                  '{"name": "' + "s" * 2000 + '", "parameters": {}}'])
def test_json_that_is_no_call_of_an_offered_tool_is_the_text(text: str) -> None:
    for pieces in ([text], [*text]):
        assert parse_either(LLAMA_FORMAT, pieces) == [ContentPiece(text)]


def test_beginning_of_a_call_is_decided_as_soon_as_it_can_be() -> None:
    """Of the JSON of a call every beginning is open; of other texts the first character that does not fit decides."""
    syntax, call = get_output_syntax(LLAMA_FORMAT), '{ "name" :\n"\\u0073t\\u006Fp", "parameters":{'
    assert [begins_call(call[:length], syntax, {"stop"}) for length in range(len(call))] == [None] * len(call)
    assert begins_call(call, syntax, {"stop"}) is True
    assert begins_call(call, syntax, {"go"}) is False
    for length in range(1, len(call)):
        if call[length - 1] != " ":
            assert begins_call(call[:length - 1] + "\0", syntax, {"stop"}) is False, call[:length]


def test_calls_are_stripped_of_the_whitespace_between_them_and_a_text_of_none() -> None:
    parsers = [CallsOrTextParser(get_output_syntax(HERMES_FORMAT), ReasoningState.CLOSED, {"stop"}, partial(
        OutputFormatParser, HERMES_FORMAT, "", OFFERED)) for _ in range(2)]
    for parser, text in zip(parsers, (f"<tool_call>{STOP_JSON}", ' {"a": 1}'), strict=True):
        parser.feed(text)
    assert [parser.strips_text for parser in parsers] == [True, False]
    assert [parser.is_field_end_token("</tool_call>") for parser in parsers] == [True, False]
