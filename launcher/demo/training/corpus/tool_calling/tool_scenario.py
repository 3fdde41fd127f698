"""Type of a tool with its parameters, its results, the requests for it and the replies.

A parameter is written `city:city`, or `unit:unit?` if it is optional: its name and the kind of its value. A request
contains values of the parameters that are its slots, and of those after ` #`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from launcher.demo.training.conversation import Tool
from launcher.demo.training.corpus.request_variations import (
    fill_slots,
    list_slots,
    randomly_lowercase_values,
    split_implied_values,
    vary_template,
)
from launcher.demo.training.corpus.values import VALUE_KINDS

ArgumentValues = dict[str, Any]
OK_RESULT = {"ok": True}


@dataclass(frozen=True, slots=True)
class ToolScenario:
    """Tool with templates of the requests that call it and of the replies to its results."""

    tool_name: str  # of the tool
    description: str
    parameter_spec: str
    request_templates: tuple[str, ...]
    reply_templates: tuple[str, ...]  # replies after the call
    result_spec: str = ""  # the fields of the tool's result
    # or a function that computes the result from the arguments
    compute_result: Callable[[ArgumentValues], ArgumentValues] | None = None
    vague_requests: tuple[str, ...] = ()  # requests without a required value
    missing_value_question: str = ""  # the question for that value

    def make_tool(self, *, describes_parameters: bool = False) -> Tool:
        """Return the tool as chat routes take it. `describes_parameters`: each parameter has a description."""
        properties, required = {}, []
        for name, kind, is_required in parse_parameter_spec(self.parameter_spec):
            properties[name] = VALUE_KINDS[kind].schema | ({"description": describe_parameter(name, kind)}
                                                           if describes_parameters else {})
            required += [name] if is_required else []
        schema = {"type": "object", "properties": properties, "required": required}
        return {"type": "function",
                "function": {"name": self.tool_name, "description": self.description, "parameters": schema}}

    def make_request(self, rng: Random) -> tuple[str, ArgumentValues]:
        """Return a request, and its arguments in the order of the parameters."""
        visible_template, implied_values = split_implied_values(rng.choice(self.request_templates))
        drawn_values = randomly_lowercase_values(rng,
                                                 draw_values(rng, self.parameter_spec, list_slots(visible_template)))
        values = drawn_values | implied_values
        return fill_slots(vary_template(rng, visible_template), drawn_values), self.order_arguments(values)

    def order_arguments(self, values: ArgumentValues) -> ArgumentValues:
        return {name: values[name] for name, *_ in parse_parameter_spec(self.parameter_spec) if name in values}

    def make_result(self, rng: Random, values: ArgumentValues) -> ArgumentValues:
        if self.compute_result:
            return self.compute_result(values)
        return draw_values(rng, self.result_spec,
                           [name for name, *_ in parse_parameter_spec(self.result_spec)]) or OK_RESULT

    def make_reply(self, rng: Random, values: ArgumentValues, result: ArgumentValues) -> str:
        """Return a reply that fits these arguments and this result."""
        known_values = values | result
        return fill_slots(rng.choice([template for template, implied_values
                                      in map(split_implied_values, self.reply_templates)
                                      if is_reply_applicable(template, implied_values, known_values)]), known_values)


def describe_parameter(name: str, kind: str) -> str:
    return "Yes or no" if kind == "yes" else f"The {name if len(name) > 2 else kind}"


def parse_parameter_spec(spec: str) -> list[tuple[str, str, bool]]:
    """Return name and kind of each parameter, and whether it is required."""
    parts = [part.partition(":") for part in spec.split()]
    return [(name, kind.removesuffix("?"), not kind.endswith("?")) for name, _, kind in parts]


def draw_values(rng: Random, spec: str, names: list[str]) -> ArgumentValues:
    kinds = {name: kind for name, kind, _ in parse_parameter_spec(spec)}
    values: ArgumentValues = {}
    for name in names:
        values[name] = draw_different_value(rng, kinds[name], values)
    return values


def draw_different_value(rng: Random, kind: str, values: Mapping[str, Any]) -> Any:
    """Return a random value, in most cases one that the request does not contain yet."""
    value = VALUE_KINDS[kind].draw(rng)
    for _ in range(4):
        if value not in values.values():
            return value
        value = VALUE_KINDS[kind].draw(rng)
    return value


def is_reply_applicable(template: str, implied_values: ArgumentValues, known_values: ArgumentValues) -> bool:
    return known_values.keys() >= set(list_slots(template)) and all(known_values.get(name) == value
                                                                    for name, value in implied_values.items())
