"""Tests of a tool and of the ways to request it, and of all tools: each definition is complete."""

from random import Random

import pytest

from launcher.demo.training.corpus.request_variations import list_slots, split_implied_values
from launcher.demo.training.corpus.tool_calling.conversations import TOOL_SCENARIOS
from launcher.demo.training.corpus.tool_calling.tool_scenario import OK_RESULT, ToolScenario, parse_parameter_spec
from launcher.demo.training.corpus.values import VALUE_KINDS

LIGHT_TOOL = ToolScenario("set_light", "Turn a light on or off", "room:room on:yes size:size?",
                          ("Light on in the {room} #on=true", "{size} light on in the {room}! #on=true"),
                          ("The {room} is bright. #on=true", "The {room} is dark. #on=false"))
PRICE_TOOL = ToolScenario("get_price", "Get a price", "item:thing", ("Price of a {item}?",), ("It costs {price}.",),
                          "price:price")
ADD_TOOL = ToolScenario("add", "Add", "a:number b:number", ("{a} and {b}?",), ("{result}",),
                        compute_result=lambda values: {"result": values["a"] + values["b"]})


def test_parameters_are_parsed_from_one_line() -> None:
    assert parse_parameter_spec("city:city unit:unit?") == [("city", "city", True), ("unit", "unit", False)]


def test_tool_has_the_openai_form() -> None:
    assert LIGHT_TOOL.make_tool() == {"type": "function", "function": {
        "name": "set_light", "description": "Turn a light on or off", "parameters": {
            "type": "object", "required": ["room", "on"], "properties": {
                "room": {"type": "string"}, "on": {"type": "boolean"},
                "size": {"type": "string", "enum": ["small", "medium", "large"]}}}}}


def test_wordy_tool_describes_its_parameters() -> None:
    properties = LIGHT_TOOL.make_tool(describes_parameters=True)["function"]["parameters"]["properties"]
    assert [rules["description"] for rules in properties.values()] == ["The room", "Yes or no", "The size"]


def test_arguments_combine_stated_and_implied_values() -> None:
    rng = Random(1)
    for _ in range(50):
        question, values = LIGHT_TOOL.make_request(rng)
        assert values["room"] in question
        assert values["on"] is True
        assert list(values) in (["room", "on"], ["room", "on", "size"])


def test_reply_matches_the_arguments() -> None:
    assert LIGHT_TOOL.make_reply(Random(1), {"room": "attic", "on": False}, OK_RESULT) == "The attic is dark."


def test_tool_answers_with_its_fields_its_result_or_ok() -> None:
    rng = Random(1)
    assert list(PRICE_TOOL.make_result(rng, {"item": "lamp"})) == ["price"]
    assert ADD_TOOL.make_result(rng, {"a": 2, "b": 3}) == {"result": 5}
    assert LIGHT_TOOL.make_result(rng, {}) == OK_RESULT


def test_values_of_one_request_differ() -> None:
    rng = Random(1)
    assert all(values["a"] != values["b"] for values in (ADD_TOOL.make_request(rng)[1] for _ in range(200)))


def get_argument_names(template: str) -> set[str]:
    visible_template, implied_values = split_implied_values(template)
    return {*list_slots(visible_template), *implied_values}


@pytest.mark.parametrize("scenario", TOOL_SCENARIOS, ids=lambda scenario: scenario.tool_name)
def test_every_request_template_gives_the_needed_arguments(scenario: ToolScenario) -> None:
    known = {name for name, *_ in parse_parameter_spec(scenario.parameter_spec)}
    needed = {name for name, _, is_required in parse_parameter_spec(scenario.parameter_spec) if is_required}
    assert [template for template in scenario.request_templates
            if not needed <= get_argument_names(template) <= known] == []


@pytest.mark.parametrize("scenario", TOOL_SCENARIOS, ids=lambda scenario: scenario.tool_name)
def test_vague_requests_lack_an_argument_and_have_a_question(scenario: ToolScenario) -> None:
    needed = {name for name, _, is_required in parse_parameter_spec(scenario.parameter_spec) if is_required}
    assert [template for template in scenario.vague_requests if needed <= get_argument_names(template)] == []
    assert bool(scenario.vague_requests) == bool(scenario.missing_value_question)


@pytest.mark.parametrize("scenario", TOOL_SCENARIOS, ids=lambda scenario: scenario.tool_name)
def test_every_tool_answer_has_a_reply(scenario: ToolScenario) -> None:
    rng = Random(1)
    for _ in range(30):
        _, values = scenario.make_request(rng)
        assert scenario.make_reply(rng, values, scenario.make_result(rng, values))


def test_names_are_unique_and_kinds_known() -> None:
    assert len({scenario.tool_name for scenario in TOOL_SCENARIOS}) == len(TOOL_SCENARIOS)
    assert ({kind for scenario in TOOL_SCENARIOS
             for _, kind, _ in parse_parameter_spec(f"{scenario.parameter_spec} {scenario.result_spec}")}
            <= VALUE_KINDS.keys())
