"""Tests of the tools that do something: each definition is complete."""

from random import Random

import pytest

from launcher.demo.training.corpus.request_variations import list_slots, split_implied_values
from launcher.demo.training.corpus.tool_calling.action_tools import CHORE_TOOLS
from launcher.demo.training.corpus.tool_calling.tool_scenario import ToolScenario, parse_parameter_spec
from launcher.demo.training.corpus.values import VALUE_KINDS


def get_argument_names(template: str) -> set[str]:
    said, meant = split_implied_values(template)
    return {*list_slots(said), *meant}


@pytest.mark.parametrize("errand", CHORE_TOOLS, ids=lambda errand: errand.tool_name)
def test_every_request_template_gives_the_needed_arguments(errand: ToolScenario) -> None:
    known = {name for name, *_ in parse_parameter_spec(errand.parameter_spec)}
    needed = {name for name, _, must in parse_parameter_spec(errand.parameter_spec) if must}
    assert [way for way in errand.request_templates if not needed <= get_argument_names(way) <= known] == []


@pytest.mark.parametrize("errand", CHORE_TOOLS, ids=lambda errand: errand.tool_name)
def test_vague_requests_lack_an_argument_and_have_a_question(errand: ToolScenario) -> None:
    needed = {name for name, _, must in parse_parameter_spec(errand.parameter_spec) if must}
    assert [way for way in errand.vague_requests if needed <= get_argument_names(way)] == []
    assert bool(errand.vague_requests) == bool(errand.missing_value_question)


@pytest.mark.parametrize("errand", CHORE_TOOLS, ids=lambda errand: errand.tool_name)
def test_every_tool_answer_has_a_reply(errand: ToolScenario) -> None:
    rng = Random(1)
    for _ in range(30):
        _, values = errand.make_request(rng)
        assert errand.make_reply(rng, values, errand.make_result(rng, values))


def test_names_are_unique_and_kinds_known() -> None:
    assert len({errand.tool_name for errand in CHORE_TOOLS}) == len(CHORE_TOOLS)
    assert ({kind for errand in CHORE_TOOLS
             for _, kind, _ in parse_parameter_spec(f"{errand.parameter_spec} {errand.result_spec}")}
            <= VALUE_KINDS.keys())
