"""Tests of invented tools."""

from random import Random

from launcher.demo.training.corpus.tool_calling.invented_tools import invent_tool
from launcher.demo.training.corpus.tool_calling.tool_scenario import parse_parameter_spec


def test_tool_names_rarely_repeat() -> None:
    rng = Random(1)
    assert len({invent_tool(rng).tool_name for _ in range(300)}) > 230


def test_names_and_parameters_are_identifiers() -> None:
    rng = Random(1)
    for scenario in (invent_tool(rng) for _ in range(300)):
        names = [name for name, *_ in parse_parameter_spec(scenario.parameter_spec)]
        assert scenario.tool_name.isidentifier()
        assert all(name.isidentifier() for name in names)
        assert 1 <= len(set(names)) == len(names) <= 3


def test_requests_name_their_arguments() -> None:
    rng = Random(1)
    for scenario in (invent_tool(rng) for _ in range(300)):
        question, values = scenario.make_request(rng)
        assert all(name in question for name in values)
        assert {name for name, _, is_required in parse_parameter_spec(scenario.parameter_spec)
                if is_required} <= values.keys()
