"""Tests that judges accept right answers and reject wrong ones."""

import json

import pytest

from launcher.demo.training.evaluation_cases import (
    ToolCall,
    find_tool_call_violation,
    is_correct_count,
    is_json_object_with_fields,
    is_valid_tool_call,
    make_exact_call_cases,
    make_json_cases,
    make_valid_call_cases,
    make_wellformed_call_cases,
    parse_tool_call,
)

TOOLS = [{"type": "function", "function": {"name": "paint", "description": "Paint it", "parameters": {
    "type": "object", "required": ["colour"], "properties": {
        "colour": {"type": "string", "enum": ["red", "blue"]}, "coats": {"type": "integer"},
        "price": {"type": "number"}, "wet": {"type": "boolean"},
        "rooms": {"type": "array", "items": {"type": "string"}}}}}}]


def format_tool_call(name: str, arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(("answer", "low", "high"), [
    ("1, 2, 3, 4.", 1, 4), ("One, two, three.", 1, 3), ("19, 20, 21", 19, 21), ("3, 2, 1.", 3, 1),
    ("Twenty, twenty-one.", 20, 21)])
def test_counting_in_digits_or_words_is_accepted(answer: str, low: int, high: int) -> None:
    assert is_correct_count(answer, low, high)


@pytest.mark.parametrize("answer", [
    "1, 2, 4.", "1, 2.", "1, 2, 3, 4.", "1, 3, 2.", "", "one, two, four", "I say 1, 2, 3."])
def test_counting_with_gaps_or_extra_words_is_rejected(answer: str) -> None:
    assert not is_correct_count(answer, 1, 3)


def test_json_needs_exactly_the_requested_fields() -> None:
    assert is_json_object_with_fields('{"age": 7, "name": "Mia"}', ["name", "age"])
    for answer in ('{"name": "Mia"}', '{"name": "Mia", "age": 7}.', '["name", "age"]', 'So: {"name": 1, "age": 2}'):
        assert not is_json_object_with_fields(answer, ["name", "age"])


def test_call_is_parsed_with_or_without_a_thought() -> None:
    right = ToolCall("paint", {"colour": "red"})
    assert parse_tool_call(format_tool_call("paint", {"colour": "red"})) == right
    assert parse_tool_call(f"<think>\nPaint fits.\n</think>\n{format_tool_call('paint', {'colour': 'red'})}\n") == right


@pytest.mark.parametrize(("text", "problem"), [
    ("It is red.", "there is no call"), ("<tool_call>\n{}", "or more than one"),
    (format_tool_call("a", {}) * 2, "or more than one"), ("<tool_call>\n{x}\n</tool_call>", "no JSON"),
    ("<tool_call>\n[1]\n</tool_call>", "name and arguments"), (format_tool_call("paint", "red"), "name and arguments"),
    (f"Now: {format_tool_call('paint', {})}", "there is no call")])
def test_invalid_calls_are_reported(text: str, problem: str) -> None:
    error = parse_tool_call(text)
    assert isinstance(error, str)
    assert problem in error


@pytest.mark.parametrize("arguments", [
    {"colour": "red"}, {"colour": "blue", "coats": 2, "price": 2.5, "wet": True, "rooms": ["hall"]},
    {"colour": "red", "price": 3}])
def test_valid_call_matches_its_schema(arguments: dict[str, object]) -> None:
    assert is_valid_tool_call(ToolCall("paint", arguments), TOOLS)


@pytest.mark.parametrize(("arguments", "fault"), [
    ({}, "colour is missing"), ({"colour": "pink"}, "colour has a wrong"), ({"colour": 3}, "colour has a wrong"),
    ({"colour": "red", "coats": "2"}, "coats has a wrong"), ({"colour": "red", "coats": True}, "coats has a wrong"),
    ({"colour": "red", "coats": 2.5}, "coats has a wrong"), ({"colour": "red", "rooms": [1]}, "rooms has a wrong"),
    ({"colour": "red", "size": 2}, "size is unknown")])
def test_invalid_arguments_are_reported(arguments: dict[str, object], fault: str) -> None:
    assert fault in find_tool_call_violation(ToolCall("paint", arguments), TOOLS)


def test_call_of_an_unoffered_tool_is_reported() -> None:
    assert find_tool_call_violation(ToolCall("wash", {}), TOOLS) == "wash is not offered"


def test_tool_trials_accept_the_expected_calls() -> None:
    cases = make_valid_call_cases(7)
    assert len(cases) == 20
    for case in cases:
        assert isinstance(case.expected_answer, ToolCall)
        assert case.accepts_answer(format_tool_call(case.expected_answer.name, case.expected_answer.arguments))
        assert not case.accepts_answer("Sorry, I have no tool for that.")
        assert case.messages[-1]["role"] == "user"


def test_json_trials_accept_the_expected_objects() -> None:
    cases = make_json_cases(7, 30)
    assert len(cases) == 30
    for case in cases:
        assert case.accepts_answer(json.dumps(case.expected_answer))
        assert not case.accepts_answer("{}")
        assert case.messages[-1]["role"] == "user"


def test_each_trial_has_its_own_judge() -> None:
    first, second = (case for case in make_json_cases(3, 2))
    assert not first.accepts_answer(json.dumps({"other": 1, **json.loads(json.dumps(second.expected_answer))}))


def test_trials_are_determined_by_their_seed() -> None:
    first, repeated, other = ([case.messages for case in make_valid_call_cases(seed)] for seed in (1, 1, 2))
    assert first == repeated != other


def test_call_trials_accept_any_well_formed_call() -> None:
    for case in make_wellformed_call_cases(3, 2):
        assert case.accepts_answer(format_tool_call("unheard", {"of": 1}))
        assert not case.accepts_answer("Sorry, I have no tool for that.")


def test_right_call_trials_accept_only_the_expected_call() -> None:
    for case, valid_call_case in zip(make_exact_call_cases(3), make_valid_call_cases(3), strict=True):
        assert isinstance(case.expected_answer, ToolCall)
        assert case.accepts_answer(format_tool_call(case.expected_answer.name, case.expected_answer.arguments))
        assert not case.accepts_answer(format_tool_call(case.expected_answer.name, {"other": 1}))
        assert valid_call_case.expected_answer == case.expected_answer
