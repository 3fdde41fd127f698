"""A command line and variables of another server, by its table, as words and variables for `weft serve`.

A flag counts before a variable of ours, that before a variable of theirs, and that before what is default there. Knows
no server and no flag but by the table.
"""

import re
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from ipaddress import ip_address
from typing import Any, Literal, NoReturn

from launcher.foreign.flags import Fate, Flag, Outcome, Table
from launcher.foreign.page import meaning
from launcher.foreign.shards import num_shards
from launcher.settings import GROUPS, Setting

OURS: Mapping[str, Setting] = {item.name: item for settings in GROUPS.values() for item in settings}
EVERYWHERE = "0.0.0.0"  # noqa: S104 - where they listen when a variable holds the name of the machine


@dataclass(frozen=True, slots=True)
class Said:
    """A flag that was given, or that counts as given."""

    flag: Flag
    by: Literal["flag", "variable", "default"]
    values: Sequence[str]

    @property
    def name(self) -> str:
        return self.flag.variable if self.by == "variable" or self.flag.only_variable else f"--{self.flag.name}"

    @property
    def outcome(self) -> Outcome:
        if found := self.flag.outcome(self.values[-1]):
            return found
        raise ValueError(f"{self.name} must be one of {', '.join(self.flag.values())}, got {self.values[-1]}")


@dataclass(slots=True)
class Translation:
    """What is to be done instead."""

    settings: dict[str, Sequence[str]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)  # words that are not in the table: flags of ours, or mistakes
    notes: list[str] = field(default_factory=list)  # what is otherwise than it was asked for
    not_needed: list[str] = field(default_factory=list)  # what is left out and missed by nobody
    shows_environment: bool = False

    @property
    def words(self) -> list[str]:
        """Those of `weft serve`."""
        given = [word for name, values in self.settings.items() for value in values for word in spelled(name, value)]
        return [*given, *self.rest]

    def set(self, name: str, values: Sequence[str]) -> None:
        """What is secret goes by a variable: whoever lists processes sees arguments."""
        if OURS[name].field.repr:
            self.settings[name] = values
        else:
            self.variables[OURS[name].variables[0]] = values[-1]

    def add(self, said: Said) -> None:
        outcome = said.outcome
        values = [outcome.gives] if outcome.gives else said.values
        match outcome.fate:
            case Fate.SETTING:
                self.set(outcome.becomes, values)
            case Fate.ADDRESS:
                self.set(outcome.becomes, [self._address(said)])
            case Fate.VARIABLE:
                self.variables[outcome.becomes] = values[-1]
            case Fate.UNUSED:
                self.notes.append(f"{said.name} has no effect: {outcome.why}")
            case Fate.SILENT:
                self.not_needed.append(f"{said.name} is not needed: {outcome.why}")
            case Fate.SHOWN:
                self.shows_environment = True

    def _address(self, said: Said) -> str:
        if said.by == "flag" or is_address(said.values[-1]):
            return said.values[-1]
        self.notes.append(f"{said.name} is no address ({said.values[-1]}), so weft listens on {EVERYWHERE}; --hostname "
                          "names another")
        return EVERYWHERE


def spelled(name: str, value: str) -> list[str]:
    return [OURS[name].flags[0]] if OURS[name].type is bool else [OURS[name].flags[0], value]


def is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def translate(table: Table, words: Sequence[str], environment: Mapping[str, str],
              devices: Callable[[], int]) -> Translation:
    """`devices` counts those that can be seen. Raises ValueError for what is refused."""
    given, rest = parser(table).parse_known_args(words)
    said = [item for item in all_said(table, vars(given), environment) if counts(item, environment)]
    check(said)
    result = Translation(rest=rest)
    for item in said:
        result.add(item)
    add_shards(result, {item.flag.name: item.values[-1] for item in said if item.outcome.fate is Fate.SHARDS},
               environment, devices)
    if "model_id" not in result.settings and not environment.get("WEFT_MODEL_ID"):
        raise ValueError("a model must be named: --model-id org/name, or MODEL_ID")
    return result


class Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parser(table: Table) -> Parser:
    made = Parser(prog=table.program, allow_abbrev=False, description="Serves as `weft serve` does, whose flags may be "
                  "given, too. What becomes of each flag:")
    made.add_argument("--version", "-V", action="version", version=f"weft {version('weft')}")
    for item in table.flags:
        more: dict[str, Any] = {"nargs": "?", "const": "true"} if item.kind == "switch" else {}
        if item.spellings:
            made.add_argument(*item.spellings, dest=item.name, action="append", default=[], metavar="VALUE",
                              help=meaning(item).replace("%", "%%"), **more)
    return made


def all_said(table: Table, given: Mapping[str, list[str]], environment: Mapping[str, str]) -> Iterator[Said]:
    for item in table.flags:
        if values := given.get(item.name):
            yield Said(item, "flag", values if item.kind == "list" else values[-1:])
        elif value := environment.get(item.variable):
            yield Said(item, "variable", re.split(r"[\s,]+", value.strip()) if item.kind == "list" else [value])
        elif item.default and (not item.beside or is_given(item.beside, given, environment)):
            yield Said(item, "default", [item.default])


def is_given(name: str, given: Mapping[str, list[str]], environment: Mapping[str, str]) -> bool:
    variable = name.upper().replace("-", "_")
    return bool(given.get(name) or environment.get(variable) or environment.get(f"WEFT_{variable}"))


def counts(said: Said, environment: Mapping[str, str]) -> bool:
    """Not if it is said by the variable that is to be set, or by one of ours, and by no flag."""
    outcome = said.outcome
    setting = OURS.get("num_shard" if outcome.fate is Fate.SHARDS else outcome.becomes)
    ours = {outcome.becomes} if setting is None else {name for name in setting.variables if name.startswith("WEFT_")}
    return said.by == "flag" or not any(environment.get(name) for name in ours)


def check(said: Sequence[Said]) -> None:
    """Everything that is refused is told at once; so is one thing that is said twice."""
    refusals = [f"{item.name} is refused: {item.outcome.why}" for item in said if item.outcome.fate is Fate.REFUSED]
    if refusals:
        raise ValueError("; and ".join(refusals))
    names = Counter(item.outcome.becomes for item in said if item.outcome.fate is Fate.SETTING)
    for name in (name for name, count in names.items() if count > 1):
        both = " and ".join(item.name for item in said if item.outcome.becomes == name)
        raise ValueError(f"{both} are given, and mean the same; give one")


def add_shards(result: Translation, said: Mapping[str, str], environment: Mapping[str, str],
               devices: Callable[[], int]) -> None:
    if not said and any(environment.get(name) for name in OURS["num_shard"].variables):
        return
    count = num_shards(said.get("sharded", "").lower(), said.get("num-shard", ""), devices)
    if said or count > 1:
        result.set("num_shard", [str(count)])
    if "num-shard" not in said and count > 1:
        result.notes.append(f"{count} shards, one for each GPU that can be seen; --num-shard says otherwise")
