"""Parsing of model output: every response format, pieces of every size, and text that fits no format."""

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.text.constrained_answer_parsers import RequiredCallParser
from router.text.output_formats import (
    BARE_JSON_FORMAT,
    DEEPSEEK_FORMAT,
    DEEPSEEK_LATER_FORMAT,
    FUNCTION_GEMMA_FORMAT,
    GEMMA_FORMAT,
    GRANITE_FORMAT,
    GRANITE_HERMES_FORMAT,
    HARMONY_FORMAT,
    HERMES_FORMAT,
    LLAMA_4_FORMAT,
    LLAMA_FORMAT,
    MISTRAL_FORMAT,
    MISTRAL_NAMED_FORMAT,
    QWEN_CODER_FORMAT,
    detect_output_format,
    find_reasoning_format,
)
from router.text.response_parser import (
    MAX_OPENING_CHARACTERS,
    ArgumentsPiece,
    ContentPiece,
    OutputFormatParser,
    ParsedToolCall,
    ReasoningPiece,
    ToolCallStart,
    join_adjacent_parts,
    parse_complete_response,
)

ARGUMENTS = {"city": "Paris", "days": 2, "note": "a \"b\" </tool_cal {x} \u00e9"}
WEATHER_CALL, STOP_CALL = ParsedToolCall("get_weather",
                                         json.dumps(ARGUMENTS, ensure_ascii=False)), ParsedToolCall("stop", "{}")


def to_json(**fields: Any) -> str:
    return json.dumps(fields, ensure_ascii=False)


WEATHER_JSON, STOP_JSON = to_json(name="get_weather", arguments=ARGUMENTS), to_json(name="stop", arguments={})
OUTPUT_CASES: dict[str, tuple[Any, str, str, list[Any]]] = {
    "text": (HERMES_FORMAT, "<|im_start|>assistant\n", "Hello, you!<|im_end|>", [ContentPiece("Hello, you!")]),
    "a call": (HERMES_FORMAT, "<|im_start|>assistant\n", f"<tool_call>\n{WEATHER_JSON}\n</tool_call><|im_end|>",
               [WEATHER_CALL]),
    "text and two calls": (
        HERMES_FORMAT, "<|im_start|>assistant\n",
        f"Well.\n<tool_call>\n{WEATHER_JSON}\n</tool_call>\n<tool_call>\n{STOP_JSON}\n</tool_call><|im_end|>",
        [ContentPiece("Well."), WEATHER_CALL, STOP_CALL]),
    "a thought": (HERMES_FORMAT, "<|im_start|>assistant\n",
                  f"<think>\nHm.\n</think>\n\n<tool_call>{STOP_JSON}</tool_call>",
                  [ReasoningPiece("\nHm.\n"), STOP_CALL]),
    "a thought that the prompt began": (
        HERMES_FORMAT, "<|im_start|>assistant\n<think>\n", "Hm.\n</think>\nHello.",
        [ReasoningPiece("Hm.\n"), ContentPiece("Hello.")]),
    "a call of llama": (
        LLAMA_FORMAT, "<|start_header_id|>assistant<|end_header_id|>\n\n",
        f"<|python_tag|>{to_json(name='get_weather', parameters=ARGUMENTS)}<|eom_id|>", [WEATHER_CALL]),
    "a bare call of llama": (
        LLAMA_FORMAT, "<|start_header_id|>assistant<|end_header_id|>\n\n",
        f"{to_json(name='get_weather', parameters=ARGUMENTS)}<|eot_id|>", [WEATHER_CALL]),
    "text of llama": (
        LLAMA_FORMAT, "<|start_header_id|>assistant<|end_header_id|>\n\n", "It is {a}.<|eot_id|>",
        [ContentPiece("It is {a}.")]),
    "calls of mistral": (MISTRAL_FORMAT, "[/INST]", f"[TOOL_CALLS] [{WEATHER_JSON}, {STOP_JSON}]</s>",
                         [WEATHER_CALL, STOP_CALL]),
    "calls of later mistrals": (
        MISTRAL_NAMED_FORMAT, "[/INST]",
        f"[TOOL_CALLS]get_weather[ARGS]{to_json(**ARGUMENTS)}[TOOL_CALLS]stop[ARGS]{{}}</s>",
        [WEATHER_CALL, STOP_CALL]),
    "text of mistral": (MISTRAL_FORMAT, "[/INST]", " Hello.</s>", [ContentPiece(" Hello.")]),
    "a call that breaks off": (
        HERMES_FORMAT, "<|im_start|>assistant\n", 'Well. <tool_call>\n{"name": "g',
        [ContentPiece('Well. <tool_call>\n{"name": "g')]),
    "a call that is none": (
        HERMES_FORMAT, "<|im_start|>assistant\n", "<tool_call>x</tool_call>y<|im_end|>",
        [ContentPiece("<tool_call>x</tool_call>y")]),
    "a call without a name": (
        HERMES_FORMAT, "<|im_start|>assistant\n<think>\n", "a</think>\n<tool_call>{}</tool_call>",
        [ReasoningPiece("a"), ContentPiece("<tool_call>{}</tool_call>")]),
    "arguments that are none": (
        HERMES_FORMAT, "<|im_start|>assistant\n", '<tool_call>{"name": "a", "arguments": 5}</tool_call>',
        [ContentPiece('<tool_call>{"name": "a", "arguments": 5}</tool_call>')]),
    "a good call and a bad one": (
        HERMES_FORMAT, "<|im_start|>assistant\n", f"<tool_call>{STOP_JSON}</tool_call>\n<tool_call>x</tool_call>",
        [STOP_CALL, ContentPiece("\n<tool_call>x</tool_call>")]),
    "json of a model that was told in words": (BARE_JSON_FORMAT, "", f" {WEATHER_JSON}", [WEATHER_CALL]),
    "text of a model that was told in words": (BARE_JSON_FORMAT, "", "It is {a}.", [ContentPiece("It is {a}.")]),
    "other json": (BARE_JSON_FORMAT, "", '{"a": 1}', [ContentPiece('{"a": 1}')]),
}


@pytest.mark.parametrize("name", OUTPUT_CASES)
def test_model_output_is_parsed(name: str) -> None:
    shape, prompt, text, parts = OUTPUT_CASES[name]
    assert parse_complete_response(OutputFormatParser(shape, f"before {prompt}"), [text]) == parts


@given(data=st.data(), name=st.sampled_from(sorted(OUTPUT_CASES)))
def test_pieces_of_any_size_give_the_same_result(data: st.DataObject, name: str) -> None:
    shape, prompt, text, parts = OUTPUT_CASES[name]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse_complete_response(OutputFormatParser(shape, prompt), pieces) == parts


@given(text=st.text(st.sampled_from("<tool_call>/{}\"name: a\n"), max_size=60), size=st.integers(1, 5))
def test_any_text_is_parsed_without_an_error(text: str, size: int) -> None:
    parse_complete_response(OutputFormatParser(HERMES_FORMAT, ""),
                            [text[place:place + size] for place in range(0, len(text), size)])


def test_deeply_nested_json_is_plain_text() -> None:
    text = '<tool_call>\n{"name": "a", "arguments": ' + "[" * 100_000 + "]" * 100_000 + "}\n</tool_call>"
    assert parse_complete_response(OutputFormatParser(HERMES_FORMAT, ""), [text]) == [ContentPiece(text)]
    call = text[len("<tool_call>\n"):]
    assert parse_complete_response(RequiredCallParser(), [call]) == [ContentPiece(call)]


def test_adjacent_parts_of_one_kind_are_joined() -> None:
    assert join_adjacent_parts([ContentPiece("a"), ContentPiece("b"), ReasoningPiece("c"), ReasoningPiece("d"),
                                WEATHER_CALL, WEATHER_CALL]) == [ContentPiece("ab"), ReasoningPiece("cd"), WEATHER_CALL,
                                                                 WEATHER_CALL]


# -- tools that are offered

def test_call_of_a_tool_that_is_not_offered_is_text() -> None:
    """Regression: clients received calls of functions that they had not offered, and some crashed."""
    text = f"<tool_call>\n{WEATHER_JSON}\n</tool_call>"
    parsed = [parse_complete_response(OutputFormatParser(HERMES_FORMAT, "", [{"function": {"name": name}}]),
                                      [text]) for name in ("other", "get_weather")]
    assert parsed == [[ContentPiece(text)], [WEATHER_CALL]]


def test_calls_beyond_the_maximum_are_left_out() -> None:
    text = f"<tool_call>\n{WEATHER_JSON}\n</tool_call>\n<tool_call>\n{STOP_JSON}\n</tool_call>"
    parsed = [parse_complete_response(OutputFormatParser(HERMES_FORMAT, "", max_calls=number), [text])
              for number in (1, 2, 3)]
    assert parsed == [[WEATHER_CALL], [WEATHER_CALL, STOP_CALL], [WEATHER_CALL, STOP_CALL]]


# -- reasoning

def test_reasoning_is_set_apart_only_where_the_template_knows_it() -> None:
    assert find_reasoning_format(None, "<think>") is None
    assert find_reasoning_format(LLAMA_FORMAT, "<think>") is None
    assert find_reasoning_format(HERMES_FORMAT, "{{ '<tool_call>' }}") is None
    reasoning_format = find_reasoning_format(HERMES_FORMAT, "{{ '<think>' }}")
    assert reasoning_format is not None
    text = f"<think>Hm.</think>\n\n<tool_call>\n{STOP_JSON}\n</tool_call>"
    assert parse_complete_response(OutputFormatParser(reasoning_format, ""), [text]) == [
        ReasoningPiece("Hm."), ContentPiece(f"<tool_call>\n{STOP_JSON}\n</tool_call>")]


def test_deepseek_answers_are_parsed() -> None:
    bar, gap = "\uff5c", "\u2581"
    calls = (f"<{bar}tool{gap}calls{gap}begin{bar}>"
             + "\n".join(f"<{bar}tool{gap}call{gap}begin{bar}>function<{bar}tool{gap}sep{bar}>{name}\n```json\n"
                         f'{{"a": 1}}\n```<{bar}tool{gap}call{gap}end{bar}>' for name in ("f", "g"))
             + f"<{bar}tool{gap}calls{gap}end{bar}>")
    prompt = f"<{bar}User{bar}>Hi<{bar}Assistant{bar}><think>\n"
    assert detect_output_format(f"{{{{ '<{bar}Assistant{bar}><think>' }}}}") == DEEPSEEK_FORMAT
    for size in (1, 5, 1000):
        text = f"Hm.</think>\n\nWell.{calls}<{bar}end{gap}of{gap}sentence{bar}>"
        pieces = [text[place:place + size] for place in range(0, len(text), size)]
        assert parse_complete_response(OutputFormatParser(DEEPSEEK_FORMAT, prompt), pieces) == [
            ReasoningPiece("Hm."), ContentPiece("Well."), ParsedToolCall("f", '{"a": 1}'),
            ParsedToolCall("g", '{"a": 1}')]


# -- Qwen3-Coder: calls in tags, whose arguments get the types of the tool's parameters

CODER_TOOL = {"type": "function", "function": {"name": "plan", "parameters": {"type": "object", "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}, "rain": {"type": "boolean"}, "stops": {"type": "array"},
    "limit": {"type": ["number", "null"]}}}}}
CODER_CALL = ("<tool_call>\n<function=plan>\n<parameter=city>\n12 rue <b>\nParis\n</parameter>\n<parameter=days>\n2\n"
              "</parameter>\n<parameter=rain>\ntrue\n</parameter>\n<parameter=stops>\n[1, \"a\"]\n</parameter>\n"
              "<parameter=limit>\n2.5\n</parameter>\n<parameter=other>\n7\n</parameter>\n</function>\n</tool_call>")
CODER_ARGUMENTS = {"city": "12 rue <b>\nParis", "days": 2, "rain": True, "stops": [1, "a"], "limit": 2.5, "other": "7"}


@pytest.mark.parametrize("size", [1, 3, 10, 1000])
def test_calls_of_qwen3_coder_have_typed_arguments(size: int) -> None:
    text = f"Let me see.\n\n{CODER_CALL}\n<tool_call>\n<function=plan>\n</function>\n</tool_call><|im_end|>"
    pieces = [text[place:place + size] for place in range(0, len(text), size)]
    content, call, empty_call = parse_complete_response(OutputFormatParser(QWEN_CODER_FORMAT, "", [CODER_TOOL]),
                                                        pieces)
    assert content == ContentPiece("Let me see.")
    assert isinstance(call, ParsedToolCall)
    assert (call.name, json.loads(call.arguments)) == ("plan", CODER_ARGUMENTS)
    assert empty_call == ParsedToolCall("plan", "{}")


@pytest.mark.parametrize("text", [CODER_CALL[:40], CODER_CALL.replace("=plan", "=unknown"), "<function=plan>"])
def test_unfinished_and_unknown_calls_of_qwen3_coder_are_text(text: str) -> None:
    parser = OutputFormatParser(QWEN_CODER_FORMAT, "", [CODER_TOOL])
    assert parse_complete_response(parser, [text]) == [ContentPiece(text)]


@pytest.mark.parametrize(("body", "parts"), [
    ('{"name": "get_weather", "arguments": {"a": NaN}}',
     [ParsedToolCall("get_weather", '{"a": '), ContentPiece("NaN}}")]),
    ('{"name": "get_weather", "arguments": {"a": [1,', [ParsedToolCall("get_weather", '{"a": [1,')]),
    ('{"name": "get_weather", "arguments": {"a": 1}', [ParsedToolCall("get_weather", '{"a": 1}')]),
    ('{"name": "get_weather", "parameters": { }, "id": "1"}', [ParsedToolCall("get_weather", "{ }")]),
    ('{"name": "get_weather", "arguments": {"a": 1}} {',
     [ParsedToolCall("get_weather", '{"a": 1}'), ContentPiece(" {")]),
    ('{"name": "get_weather", "arguments": {}}{"name": "stop"}',
     [ParsedToolCall("get_weather", "{}"), ContentPiece('{"name": "stop"}')]),
    ('{"name": "get_weather", "arguments": {"a": ' + "[" * 9999 + "}}",
     [ParsedToolCall("get_weather", '{"a": ' + "[" * 9999), ContentPiece("}}")])])
def test_call_that_breaks_after_its_arguments_began_stays_a_call(body: str, parts: list[Any]) -> None:
    """Its beginning was sent, and cannot be taken back."""
    text = f"Well.\n<tool_call>\n{body}</tool_call>"
    for size in (1, 3, len(text)):
        pieces = [text[place:place + size] for place in range(0, len(text), size)]
        parser = OutputFormatParser(HERMES_FORMAT, "", OFFERED)
        assert parse_complete_response(parser, pieces) == [ContentPiece("Well."), *parts]


def collect_parts_by_piece(shape: Any, pieces: list[str], **options: Any) -> list[list[Any]]:
    parser = OutputFormatParser(shape, shape["start_anchor"], OFFERED, **options)
    return [parser.feed(piece) for piece in pieces] + [parser.finish()]


def test_arguments_of_a_call_are_returned_as_they_come() -> None:
    assert collect_parts_by_piece(HERMES_FORMAT, [
        "<tool_call>\n", '{"name": "st', 'op", "arguments": {', '"a"', ": [1", "]}", "}\n", "</tool_call>"]) == [
        [], [], [], [ToolCallStart("stop"), ArgumentsPiece('{"a"')], [ArgumentsPiece(": [1")], [ArgumentsPiece("]}")],
        [], [], []]
    assert collect_parts_by_piece(MISTRAL_NAMED_FORMAT, ["[TOOL_CALLS]stop", '[ARGS]{"', 'a"', ": 1}", "</s>"]) == [
        [], [ToolCallStart("stop"), ArgumentsPiece('{"')], [ArgumentsPiece('a"')], [ArgumentsPiece(": 1}")], [], []]
    assert collect_parts_by_piece(LLAMA_FORMAT, ['{"name": "stop", ', '"parameters": {"a": ', "2}}"])[1:] == [
        [ToolCallStart("stop"), ArgumentsPiece('{"a": ')], [ArgumentsPiece("2}")], []]


def test_call_beyond_the_maximum_never_begins() -> None:
    call = f"<tool_call>{WEATHER_JSON}</tool_call>"
    assert [part for parts in collect_parts_by_piece(HERMES_FORMAT, [*call, *call], max_calls=1) for part in parts
            if isinstance(part, ToolCallStart)] == [ToolCallStart("get_weather")]


def test_calls_come_whole_if_they_are_not_to_be_streamed() -> None:
    text = f"<tool_call>{WEATHER_JSON}</tool_call>"
    parts = collect_parts_by_piece(HERMES_FORMAT, [*text], streams_calls=False)
    assert [part for some in parts for part in some] == [WEATHER_CALL]


def test_call_that_begins_late_comes_whole() -> None:
    text = '<tool_call>{"name":' + " " * MAX_OPENING_CHARACTERS + '"stop", "arguments": {"a":1}}</tool_call>'
    for pieces in ([text], [*text]):
        assert [part for parts in collect_parts_by_piece(HERMES_FORMAT, pieces) for part in parts] == [
            ParsedToolCall("stop", '{"a": 1}')]


@pytest.mark.parametrize("text", [
    "<tool_call>\n<function=plan></function>\n</tool_call><|im_end|>",
    "<tool_call>\n<function=plan></function>\n</tool_call>",
    "<tool_call><function=plan>\n</function></tool_call>"])
def test_calls_of_qwen3_coder_without_parameters_are_calls(text: str) -> None:
    for size in (1, 4, 1000):
        pieces = [text[place:place + size] for place in range(0, len(text), size)]
        parser = OutputFormatParser(QWEN_CODER_FORMAT, "", [CODER_TOOL])
        assert parse_complete_response(parser, pieces) == [ParsedToolCall("plan", "{}")]


@pytest.mark.parametrize(("shape", "call", "rest"), [
    (QWEN_CODER_FORMAT, "<tool_call>\n<function=plan>\n</function>\n</tool_call>",
     "\n<tool_call>\n<function=plan>\n<para"),
    (QWEN_CODER_FORMAT, "<tool_call>\n<function=plan>\n</function>\n</tool_call>",
     "\n<tool_call>\n<function=other>\n</function>\n</tool_call>"),
    (HERMES_FORMAT, '<tool_call>\n{"name": "plan"}\n</tool_call>', '\n<tool_call>\n{"name": "pla'),
    (HERMES_FORMAT, '<tool_call>\n{"name": "plan"}\n</tool_call>', 'c<tool_call>{"name":"plan",</tool_call>')])
def test_text_behind_a_call_that_is_no_call_follows_it_unchanged(shape: Any, call: str, rest: str) -> None:
    """Regression: a part of the call came again as text."""
    for size in (1, 4, 1000):
        text = call + rest
        pieces = [text[place:place + size] for place in range(0, len(text), size)]
        first, *others = parse_complete_response(OutputFormatParser(shape, "", [CODER_TOOL]), pieces)
        assert first == ParsedToolCall("plan", "{}")
        assert "".join(part.text for part in others if isinstance(part, ContentPiece)) == rest


def test_text_that_holds_the_json_of_a_call_is_not_returned_again() -> None:
    """Regression: the text before a call came twice if it held the same JSON and a broken call followed."""
    call, rest = '<tool_call>{"name": "plan"}</tool_call>', '\n<tool_call>{"name":</tool_call>'
    text = f'As {{"name": "plan"}}: {call}{rest}'
    for pieces in ([text], [*text]):
        parser = OutputFormatParser(HERMES_FORMAT, "", [CODER_TOOL])
        assert parse_complete_response(parser, pieces) == [
            ContentPiece('As {"name": "plan"}:'), ParsedToolCall("plan", "{}"), ContentPiece(rest)]


# -- further formats, as the templates of their models write them

OFFERED = [{"function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
           for name in ("get_weather", "stop")]
GEMMA_ARGUMENTS = ('{city:<|"|>Paris<|"|>,days:2,note:<|"|>a "b" </tool_cal {x} \u00e9<|"|>}')
ESCAPED_ARGUMENTS = GEMMA_ARGUMENTS.replace('<|"|>', "<escape>")
HARMONY_CALL = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}<|call|>"
ROLE_CALL = " to=functions.{}<|channel|>commentary json<|message|>{}<|call|>"
ARGUMENTS_JSON = to_json(**ARGUMENTS)
ANALYSIS, START = "<|channel|>analysis<|message|>Hm.<|end|>", "<|start|>assistant"
CALLS_MARK, SEPARATOR_MARK = "<\uff5ctool\u2581{}\u2581{}\uff5c>", "<\uff5ctool\u2581sep\uff5c>"
# By the format: two calls, what stands between them, and text with reasoning, as a template writes it and as its parts.
FORMAT_CASES: dict[str, tuple[Any, str, str, str, str, list[Any]]] = {
    "hermes": (HERMES_FORMAT, f"<tool_call>\n{WEATHER_JSON}\n</tool_call>", f"<tool_call>\n{STOP_JSON}\n</tool_call>",
               "\n", "<think>\nHm.\n</think>\n\nHi.<|im_end|>", [ReasoningPiece("\nHm.\n"), ContentPiece("Hi.")]),
    "mistral": (MISTRAL_NAMED_FORMAT, f"[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS_JSON}",
                "[TOOL_CALLS]stop[CALL_ID]123456789[ARGS]{}", "", "[THINK]Hm.[/THINK]Hi.</s>",
                [ReasoningPiece("Hm."), ContentPiece("Hi.")]),
    "harmony": (HARMONY_FORMAT, HARMONY_CALL.format("get_weather", ARGUMENTS_JSON),
                START + HARMONY_CALL.format("stop", "{}"), "",
                f"{ANALYSIS}{START}<|channel|>final<|message|>Hi.<|return|>",
                [ReasoningPiece("Hm."), ContentPiece("Hi.")]),
    "harmony with the recipient first": (
        HARMONY_FORMAT, ROLE_CALL.format("get_weather", ARGUMENTS_JSON), START + ROLE_CALL.format("stop", "{}"), "",
        f"{ANALYSIS}{START}<|channel|>commentary<|message|>Hi.<|end|>", [ReasoningPiece("Hm."), ContentPiece("Hi.")]),
    "later deepseek": (
        DEEPSEEK_LATER_FORMAT, f"{CALLS_MARK.format('calls', 'begin')}{CALLS_MARK.format('call', 'begin')}get_weather"
        f"{SEPARATOR_MARK}{ARGUMENTS_JSON}{CALLS_MARK.format('call', 'end')}",
        f"{CALLS_MARK.format('call', 'begin')}stop{SEPARATOR_MARK}{{}}{CALLS_MARK.format('call', 'end')}"
        f"{CALLS_MARK.format('calls', 'end')}", "", "<think>Hm.</think>Hi.<\uff5cend\u2581of\u2581sentence\uff5c>",
        [ReasoningPiece("Hm."), ContentPiece("Hi.")]),
    "llama 4": (LLAMA_4_FORMAT, f"<|python_start|>{to_json(name='get_weather', parameters=ARGUMENTS)}<|python_end|>",
                '<|python_start|>{"name": "stop", "parameters": {}}<|python_end|>', "", "Hi.<|eot|>",
                [ContentPiece("Hi.")]),
    "granite 4": (GRANITE_HERMES_FORMAT, f"<tool_call>\n{WEATHER_JSON}\n</tool_call>",
                  f"<tool_call>\n{STOP_JSON}\n</tool_call>", "\n", "Hi.<|end_of_text|>", [ContentPiece("Hi.")]),
    "gemma 4": (GEMMA_FORMAT, f"<|tool_call>call:get_weather{GEMMA_ARGUMENTS}<tool_call|>",
                "<|tool_call>call:stop{}<tool_call|>", "", "<|channel>thought\nHm.\n<channel|>Hi.<turn|>",
                [ReasoningPiece("Hm."), ContentPiece("Hi.")]),
    "function gemma": (FUNCTION_GEMMA_FORMAT,
                       f"<start_function_call>call:get_weather{ESCAPED_ARGUMENTS}<end_function_call>",
                       "<start_function_call>call:stop{}<end_function_call>", "", "Hi.<end_of_turn>",
                       [ContentPiece("Hi.")]),
}


def parse_cut_anywhere(shape: Any, text: str) -> list[Any]:
    """Return the parts of an answer, which are the same cut at every place."""
    whole = parse_complete_response(OutputFormatParser(shape, shape["start_anchor"], OFFERED), [text])
    for pieces in ([text[:place], text[place:]] for place in range(len(text))):
        assert parse_complete_response(OutputFormatParser(shape, shape["start_anchor"], OFFERED), pieces) == whole
    assert parse_complete_response(OutputFormatParser(shape, shape["start_anchor"], OFFERED), text) == whole
    return whole


# Marks that close the calls of some format.
MARKS = ("</tool_call>", "```", "</s>", "[TOOL_CALLS]", "<|eom_id|>", "<|eot_id|>", "<|call|>", "<|end|>",
         "<|end_of_text|>", "<|python_end|>", CALLS_MARK.format("call", "end"), '\\"</tool_call>')
JSON_CALL_CASES = {
    **{name: (shape, call) for name, (shape, call, *_) in FORMAT_CASES.items() if "gemma" not in name},
    "llama": (LLAMA_FORMAT, f"<|python_tag|>{WEATHER_JSON}<|eom_id|>"),
    "a bare call": (BARE_JSON_FORMAT, WEATHER_JSON),
    "a fenced call": (BARE_JSON_FORMAT, f"```json\n{WEATHER_JSON}\n```"),
    "a list": (MISTRAL_FORMAT, f"[TOOL_CALLS] [{WEATHER_JSON}]</s>"),
    "a list of granite": (GRANITE_FORMAT, f"<|tool_call|>[{WEATHER_JSON}]<|end_of_text|>"),
    "deepseek": (DEEPSEEK_FORMAT, f"{CALLS_MARK.format('call', 'begin')}function{SEPARATOR_MARK}get_weather\n```json\n"
                                  f"{ARGUMENTS_JSON}\n```{CALLS_MARK.format('call', 'end')}")}


@pytest.mark.parametrize("tries_all", [False, pytest.param(True, marks=pytest.mark.long)], ids=["some", "all"])
@pytest.mark.parametrize("name", JSON_CALL_CASES)
def test_mark_within_the_json_of_a_call_does_not_close_it(name: str, tries_all: bool) -> None:
    """Regression: a call whose argument held the mark that closes calls was cut short. Every mark of a format is tried
    with it, and each of the others with every fourth format, in the long form with all of them."""
    shape, call = JSON_CALL_CASES[name]
    turn = [*JSON_CALL_CASES].index(name)
    for mark in [mark for place, mark in enumerate(MARKS) if tries_all or mark in call or (place + turn) % 4 == 0]:
        note = ARGUMENTS_JSON.replace("Paris", f"a{mark}b {mark}")
        assert parse_cut_anywhere(shape, call.replace("Paris", f"a{mark}b {mark}")) == [
            ParsedToolCall("get_weather", note)]


def test_streamed_arguments_go_on_behind_a_mark_in_a_string() -> None:
    assert collect_parts_by_piece(HERMES_FORMAT, [
        '<tool_call>{"name": "stop", "arguments": {"a": "', "</tool_call>", 'b"}}', "</tool_call>"]) == [
        [ToolCallStart("stop"), ArgumentsPiece('{"a": "')], [ArgumentsPiece("</tool_call>")],
        [ArgumentsPiece('b"}')], [], []]


def test_token_closes_a_call_only_behind_its_json() -> None:
    parser = OutputFormatParser(HARMONY_FORMAT, "", OFFERED)
    closes = []
    for piece in ("<|channel|>commentary to=functions.stop<|message|>", '{"a": "', 'b"}'):
        parser.feed(piece)
        closes.append(parser.is_field_end_token("<|call|>"))
    assert closes == [False, False, True]


@pytest.mark.parametrize("name", FORMAT_CASES)
def test_calls_of_each_format_are_parsed(name: str) -> None:
    shape, call, second, between, text, parts = FORMAT_CASES[name]
    assert parse_cut_anywhere(shape, call) == [WEATHER_CALL]
    assert parse_cut_anywhere(shape, call + between + second) == [WEATHER_CALL, STOP_CALL]
    assert parse_cut_anywhere(shape, text) == parts


@pytest.mark.parametrize("name", FORMAT_CASES)
def test_broken_and_unknown_calls_of_each_format_are_text(name: str) -> None:
    shape, call, *_ = FORMAT_CASES[name]
    for text in (call.replace("get_weather", "other"), call.replace("{", "{[", 1)):
        kept = re.sub(r"^<\|channel\|>commentary<\|message\|>|<\|call\|>$", "", text)
        [part] = parse_cut_anywhere(shape, text)
        assert isinstance(part, ContentPiece)
        assert kept in part.text


def test_granite_writes_a_list_of_calls_and_wraps_its_answer() -> None:
    text = f"<think>Hm.</think><response>Hi.</response><|tool_call|>[{WEATHER_JSON}, {STOP_JSON}]<|end_of_text|>"
    assert parse_cut_anywhere(GRANITE_FORMAT, text) == [ReasoningPiece("Hm."), ContentPiece("Hi."), WEATHER_CALL,
                                                        STOP_CALL]
    unknown = '<|tool_call|>[{"name": "other", "arguments": {}}]'
    assert parse_cut_anywhere(GRANITE_FORMAT, unknown) == [ContentPiece(unknown)]


def test_text_around_calls_of_harmony_stands_in_its_channel() -> None:
    text = (f"<|channel|>commentary<|message|>First.<|end|>{START}{HARMONY_CALL.format('stop', '{}')}"
            f"{START}<|channel|>final<|message|>Then.<|return|>")
    assert parse_cut_anywhere(HARMONY_FORMAT, text) == [ContentPiece("First."), STOP_CALL, ContentPiece("Then.")]


LINEAR_TIME_FORMATS = [BARE_JSON_FORMAT, DEEPSEEK_FORMAT, GEMMA_FORMAT, GRANITE_FORMAT, HARMONY_FORMAT, HERMES_FORMAT,
                       LLAMA_4_FORMAT, LLAMA_FORMAT, MISTRAL_FORMAT, QWEN_CODER_FORMAT]
REPEATED_PIECES = ["<tool_call>", "{", '"', "<|", "<", " ", '{"name":"a","arguments":{', "<function=", "<think>", "[",
                   "\\", "[a(b=", "<|channel|>", "<parameter=a>", "\n", "<|python_tag|>", "[TOOL_CALLS]", "}"]


def measure_processor_seconds(output_format: Any, text: str) -> float:
    def measure_once() -> float:
        parser, started_at = OutputFormatParser(output_format, ""), time.process_time()
        for start in range(0, len(text), 8):
            parser.feed(text[start:start + 8])
        parser.finish()
        return time.process_time() - started_at
    return min(measure_once() for _ in range(3))


@pytest.mark.parametrize(("pieces", "num_characters"), [
    (REPEATED_PIECES[:4], 2**12), pytest.param(REPEATED_PIECES, 2**15, marks=pytest.mark.long)], ids=["short", "long"])
@pytest.mark.parametrize("output_format", LINEAR_TIME_FORMATS)
def test_eightfold_text_takes_no_more_than_some_eightfold_time(
        output_format: Any, pieces: list[str], num_characters: int) -> None:
    """Processor time, at least a millisecond; with its square the time would be 64-fold."""
    for piece in pieces:
        seconds, eightfold_seconds = (measure_processor_seconds(output_format, (piece * length)[:length])
                                      for length in (num_characters // 8, num_characters))
        assert eightfold_seconds <= 32 * max(seconds, 0.001), piece
