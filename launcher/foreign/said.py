"""What was said of the flags of another server, by its command line, by variables, or by their being default there, and
what of it counts.

A flag counts before a variable of ours, that before a variable of theirs, and that before what is default there. Knows
no server and no flag but by the table.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from launcher.foreign.flags import TRUE, Fate, Flag, Outcome, Table, negated, silent, unused
from launcher.model import HUB_NAME
from launcher.settings import GROUPS, Setting

OURS: Mapping[str, Setting] = {item.name: item for settings in GROUPS.values() for item in settings}


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
    def value(self) -> str:
        return self.values[-1]

    @property
    def outcome(self) -> Outcome:
        if found := self.flag.outcome(self.value):
            return found
        raise ValueError(f"{self.name} must be one of {', '.join(self.flag.values())}, got {self.value}")

    @property
    def is_on(self) -> bool:
        return self.value.lower() in TRUE

    @property
    def revised(self) -> tuple[str, str]:
        """A model and the revision behind its name, if there is one. A folder has none, and may be called a@b."""
        name, _, revision = self.value.partition("@")
        is_named = self.outcome.fate is Fate.REVISED and HUB_NAME.fullmatch(name) and revision
        return (name, revision) if is_named else (self.value, "")


@dataclass(frozen=True, slots=True)
class Heard:
    """A command line, parted, and the variables around it."""

    given: Mapping[str, list[str]]  # by the names of their flags
    rest: Sequence[str]  # words that are not in the table: flags of ours, or mistakes
    environment: Mapping[str, str]

    def said(self, table: Table) -> list[Said]:
        return [*without_overruled([item for flag in table.flags for item in self.of(flag) if self.counts(item)])]

    def of(self, flag: Flag) -> Iterator[Said]:
        if values := self.given.get(flag.name):
            yield Said(flag, "flag", values if flag.kind == "list" else values[-1:])
        elif value := self.environment.get(flag.variable):
            yield Said(flag, "variable", re.split(r"[\s,]+", value.strip()) if flag.kind == "list" else [value])
        elif flag.default and self.is_wanted(flag.beside):
            yield Said(flag, "default", [flag.default])

    def always(self, table: Table) -> dict[str, str]:
        return {item.setting: item.value for item in table.always if self.is_wanted(item.beside)}

    def is_wanted(self, beside: str) -> bool:
        """Whether the flag that a default is for is there."""
        variable = beside.upper().replace("-", "_")
        return not beside or any((self.given.get(beside), self.environment.get(variable),
                                  self.environment.get(f"WEFT_{variable}")))

    def counts(self, said: Said) -> bool:
        """Not if the variable that is to be set has been, or if ours says it, unless a flag of theirs does, too."""
        name = "num_shard" if said.outcome.fate is Fate.SHARDS else said.outcome.becomes
        if said.by == "flag":
            return True
        if name in OURS:
            ours = (variable for variable in OURS[name].variables if variable.startswith("WEFT_"))
            return not self.has_flag(name) and not any(map(self.environment.get, ours))
        return not self.environment.get(name) or name == said.name

    def has(self, setting: str) -> bool:
        """By a flag of ours, or by a variable that `weft serve` reads."""
        return self.has_flag(setting) or any(map(self.environment.get, OURS[setting].variables))

    def has_flag(self, setting: str) -> bool:
        flags = OURS[setting].flags
        return any(word.partition("=")[0] in {*flags, negated(flags[0])} for word in self.rest)


def without_overruled(said: Sequence[Said]) -> Iterator[Said]:
    """A flag that does not count beside another one becomes nothing, which is told if they differ."""
    over = {item.flag.over: item for item in said}
    for item in said:
        if winner := over.get(item.flag.name):
            nothing = silent if item.value == winner.value else unused
            yield replace(item, flag=replace(item.flag, outcomes=(nothing(f"{winner.name} counts"),)))
        else:
            yield item


def check(said: Sequence[Said]) -> None:
    """Everything that is refused is told at once; so is one thing that is said twice, or against another."""
    refusals = [f"{item.name} is refused: {item.outcome.why}" for item in said if item.outcome.fate is Fate.REFUSED]
    if refusals:
        raise ValueError("; and ".join(refusals))
    names = Counter(item.outcome.becomes for item in said if item.outcome.fate is Fate.SETTING)
    for name in (name for name, count in names.items() if count > 1):
        both = " and ".join(item.name for item in said if item.outcome.becomes == name)
        raise ValueError(f"{both} are given, and mean the same; give one")
    for item in said:
        check_against(item, said)


def check_against(item: Said, said: Sequence[Said]) -> None:
    for other in said:
        if item.flag.against == other.flag.name and item.is_on and other.is_on:
            raise ValueError(f"{item.name} and {other.name} contradict each other; give one")
        if item.revised[1] and other.outcome.becomes == "revision":
            raise ValueError(f"{item.name} names the revision {item.revised[1]} already, so {other.name} "
                             f"({other.value}) must not be given")
