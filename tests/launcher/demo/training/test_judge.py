"""Tests that judges accept right answers and reject wrong ones."""

import json

import pytest

from launcher.demo.training.judge import (
    Call,
    call_of,
    call_trials,
    counts_right,
    fault_of,
    is_json,
    json_trials,
    obeys,
    right_call_trials,
    tool_trials,
)

TOOLS = [{"type": "function", "function": {"name": "paint", "description": "Paint it", "parameters": {
    "type": "object", "required": ["colour"], "properties": {
        "colour": {"type": "string", "enum": ["red", "blue"]}, "coats": {"type": "integer"},
        "price": {"type": "number"}, "wet": {"type": "boolean"},
        "rooms": {"type": "array", "items": {"type": "string"}}}}}}]


def written(name: str, arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(("answer", "low", "high"), [
    ("1, 2, 3, 4.", 1, 4), ("One, two, three.", 1, 3), ("19, 20, 21", 19, 21), ("3, 2, 1.", 3, 1),
    ("Twenty, twenty-one.", 20, 21)])
def test_counting_in_digits_or_words_is_right(answer: str, low: int, high: int) -> None:
    assert counts_right(answer, low, high)


@pytest.mark.parametrize("answer", [
    "1, 2, 4.", "1, 2.", "1, 2, 3, 4.", "1, 3, 2.", "", "one, two, four", "I say 1, 2, 3."])
def test_a_gap_or_a_word_too_many_is_wrong(answer: str) -> None:
    assert not counts_right(answer, 1, 3)


def test_json_has_the_wanted_fields_and_nothing_beside_it() -> None:
    assert is_json('{"age": 7, "name": "Mia"}', ["name", "age"])
    for answer in ('{"name": "Mia"}', '{"name": "Mia", "age": 7}.', '["name", "age"]', 'So: {"name": 1, "age": 2}'):
        assert not is_json(answer, ["name", "age"])


def test_a_call_is_read_with_or_without_a_thought_before_it() -> None:
    right = Call("paint", {"colour": "red"})
    assert call_of(written("paint", {"colour": "red"})) == right
    assert call_of(f"<think>\nPaint fits.\n</think>\n{written('paint', {'colour': 'red'})}\n") == right


@pytest.mark.parametrize(("text", "problem"), [
    ("It is red.", "there is no call"), ("<tool_call>\n{}", "or more than one"),
    (written("a", {}) * 2, "or more than one"), ("<tool_call>\n{x}\n</tool_call>", "no JSON"),
    ("<tool_call>\n[1]\n</tool_call>", "name and arguments"), (written("paint", "red"), "name and arguments"),
    (f"Now: {written('paint', {})}", "there is no call")])
def test_what_is_no_call_has_its_problem(text: str, problem: str) -> None:
    found = call_of(text)
    assert isinstance(found, str)
    assert problem in found


@pytest.mark.parametrize("arguments", [
    {"colour": "red"}, {"colour": "blue", "coats": 2, "price": 2.5, "wet": True, "rooms": ["hall"]},
    {"colour": "red", "price": 3}])
def test_a_call_that_fits_obeys(arguments: dict[str, object]) -> None:
    assert obeys(Call("paint", arguments), TOOLS)


@pytest.mark.parametrize(("arguments", "fault"), [
    ({}, "colour is missing"), ({"colour": "pink"}, "colour has a wrong"), ({"colour": 3}, "colour has a wrong"),
    ({"colour": "red", "coats": "2"}, "coats has a wrong"), ({"colour": "red", "coats": True}, "coats has a wrong"),
    ({"colour": "red", "coats": 2.5}, "coats has a wrong"), ({"colour": "red", "rooms": [1]}, "rooms has a wrong"),
    ({"colour": "red", "size": 2}, "size is unknown")])
def test_a_call_that_does_not_fit_has_its_fault(arguments: dict[str, object], fault: str) -> None:
    assert fault in fault_of(Call("paint", arguments), TOOLS)


def test_a_tool_that_is_not_offered_cannot_be_called() -> None:
    assert fault_of(Call("wash", {}), TOOLS) == "wash is not offered"


def test_trials_of_calls_pass_what_the_corpus_would_answer() -> None:
    trials = tool_trials(7)
    assert len(trials) == 20
    for trial in trials:
        assert isinstance(trial.wanted, Call)
        assert trial.passes(written(trial.wanted.name, trial.wanted.arguments))
        assert not trial.passes("Sorry, I have no tool for that.")
        assert trial.messages[-1]["role"] == "user"


def test_trials_of_json_pass_what_the_corpus_would_answer() -> None:
    trials = json_trials(7, 30)
    assert len(trials) == 30
    for trial in trials:
        assert trial.passes(json.dumps(trial.wanted))
        assert not trial.passes("{}")
        assert trial.messages[-1]["role"] == "user"


def test_each_trial_has_its_own_judge() -> None:
    first, second = (trial for trial in json_trials(3, 2))
    assert not first.passes(json.dumps({"other": 1, **json.loads(json.dumps(second.wanted))}))


def test_trials_are_those_of_their_seed() -> None:
    first, again, other = ([trial.messages for trial in tool_trials(seed)] for seed in (1, 1, 2))
    assert first == again != other


def test_a_call_is_well_formed_whatever_it_calls() -> None:
    for trial in call_trials(3, 2):
        assert trial.passes(written("unheard", {"of": 1}))
        assert not trial.passes("Sorry, I have no tool for that.")


def test_of_all_calls_that_obey_a_schema_one_is_right() -> None:
    for trial, obeying in zip(right_call_trials(3), tool_trials(3), strict=True):
        assert isinstance(trial.wanted, Call)
        assert trial.passes(written(trial.wanted.name, trial.wanted.arguments))
        assert not trial.passes(written(trial.wanted.name, {"other": 1}))
        assert obeying.wanted == trial.wanted
