"""Tests of the tools that look something up: each definition is complete."""

from random import Random

import pytest

from launcher.demo.training.corpus.request_variations import list_slots, split_implied_values
from launcher.demo.training.corpus.tool_calling.lookup_tools import LOOKUP_TOOLS
from launcher.demo.training.corpus.tool_calling.tool_template import ToolTemplate, parse_parameter_spec
from launcher.demo.training.corpus.values import VALUE_KINDS


def get_argument_names(template: str) -> set[str]:
    visible_template, implied_values = split_implied_values(template)
    return {*list_slots(visible_template), *implied_values}


@pytest.mark.parametrize("scenario", LOOKUP_TOOLS, ids=lambda scenario: scenario.tool_name)
def test_every_request_template_gives_the_needed_arguments(scenario: ToolTemplate) -> None:
    known = {name for name, *_ in parse_parameter_spec(scenario.parameter_spec)}
    needed = {name for name, _, is_required in parse_parameter_spec(scenario.parameter_spec) if is_required}
    assert [template for template in scenario.request_templates
            if not needed <= get_argument_names(template) <= known] == []


@pytest.mark.parametrize("scenario", LOOKUP_TOOLS, ids=lambda scenario: scenario.tool_name)
def test_vague_requests_lack_an_argument_and_have_a_question(scenario: ToolTemplate) -> None:
    needed = {name for name, _, is_required in parse_parameter_spec(scenario.parameter_spec) if is_required}
    assert [template for template in scenario.vague_requests if needed <= get_argument_names(template)] == []
    assert bool(scenario.vague_requests) == bool(scenario.missing_value_question)


@pytest.mark.parametrize("scenario", LOOKUP_TOOLS, ids=lambda scenario: scenario.tool_name)
def test_every_tool_answer_has_a_reply(scenario: ToolTemplate) -> None:
    rng = Random(1)
    for _ in range(30):
        _, values = scenario.make_request(rng)
        assert scenario.make_reply(rng, values, scenario.make_result(rng, values))


def test_names_are_unique_and_kinds_known() -> None:
    assert len({scenario.tool_name for scenario in LOOKUP_TOOLS}) == len(LOOKUP_TOOLS)
    assert ({kind for scenario in LOOKUP_TOOLS
             for _, kind, _ in parse_parameter_spec(f"{scenario.parameter_spec} {scenario.result_spec}")}
            <= VALUE_KINDS.keys())
