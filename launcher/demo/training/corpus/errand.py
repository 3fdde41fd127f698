"""Type of a tool with its parameters, its results, the requests for it and the replies.

A parameter is written `city:city`, or `unit:unit?` if it is optional: its name and the kind of its value. A request
contains values of the parameters that are its slots, and of those after ` #`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from launcher.demo.training.corpus.asking import fill, moody, parted, slots_of, typed
from launcher.demo.training.corpus.values import KINDS
from launcher.demo.training.talk import Tool

Values = dict[str, Any]
OK = {"ok": True}


@dataclass(frozen=True, slots=True)
class Errand:
    name: str  # of the tool
    about: str
    takes: str
    asks: tuple[str, ...]
    says: tuple[str, ...]  # replies after the call
    tells: str = ""  # the fields of the tool's result
    works: Callable[[Values], Values] | None = None  # or a function that computes the result from the arguments
    vague: tuple[str, ...] = ()  # requests without a required value
    back: str = ""  # the question for that value

    def tool(self, *, wordy: bool = False) -> Tool:
        """Return the tool as chat routes take it. `wordy`: each parameter has a description."""
        properties, required = {}, []
        for name, kind, must in parameters(self.takes):
            properties[name] = KINDS[kind].schema | ({"description": described(name, kind)} if wordy else {})
            required += [name] if must else []
        schema = {"type": "object", "properties": properties, "required": required}
        return {"type": "function", "function": {"name": self.name, "description": self.about, "parameters": schema}}

    def ask(self, rng: Random) -> tuple[str, Values]:
        """Return a request, and its arguments in the order of the parameters."""
        said, meant = parted(rng.choice(self.asks))
        drawn = typed(rng, draw(rng, self.takes, slots_of(said)))
        values = drawn | meant
        return fill(moody(rng, said), drawn), self.in_order(values)

    def in_order(self, values: Values) -> Values:
        return {name: values[name] for name, *_ in parameters(self.takes) if name in values}

    def answer(self, rng: Random, values: Values) -> Values:
        if self.works:
            return self.works(values)
        return draw(rng, self.tells, [name for name, *_ in parameters(self.tells)]) or OK

    def say(self, rng: Random, values: Values, answer: Values) -> str:
        """Return a reply that fits these arguments and this result."""
        known = values | answer
        return fill(rng.choice([said for said, meant in map(parted, self.says) if fits(said, meant, known)]), known)


def described(name: str, kind: str) -> str:
    return "Yes or no" if kind == "yes" else f"The {name if len(name) > 2 else kind}"


def parameters(spec: str) -> list[tuple[str, str, bool]]:
    """Return name and kind of each parameter, and whether it is required."""
    parts = [part.partition(":") for part in spec.split()]
    return [(name, kind.removesuffix("?"), not kind.endswith("?")) for name, _, kind in parts]


def draw(rng: Random, spec: str, names: list[str]) -> Values:
    kinds = {name: kind for name, kind, _ in parameters(spec)}
    values: Values = {}
    for name in names:
        values[name] = fresh(rng, kinds[name], values)
    return values


def fresh(rng: Random, kind: str, values: Mapping[str, Any]) -> Any:
    """Return a random value, in most cases one that the request does not contain yet."""
    value = KINDS[kind].draw(rng)
    for _ in range(4):
        if value not in values.values():
            return value
        value = KINDS[kind].draw(rng)
    return value


def fits(said: str, meant: Values, known: Values) -> bool:
    return known.keys() >= set(slots_of(said)) and all(known.get(name) == value for name, value in meant.items())
