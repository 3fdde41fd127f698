"""Values of another server's flags, from its command line, from variables, or from its defaults.

The order of precedence is: a flag, a variable of weft, a variable of the other server, a default of the other server.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from launcher.compat.flag_table import TRUE, Fate, Flag, Outcome, Table, negated, silent, unused
from launcher.hub.resolve import HUB_NAME
from launcher.settings import GROUPS, Setting

OURS: Mapping[str, Setting] = {item.name: item for settings in GROUPS.values() for item in settings}


@dataclass(frozen=True, slots=True)
class Said:
    """Flag with the values that were given, or with its default."""

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
        """Model and revision of `name@revision`. A folder has no revision, even if its name contains an @."""
        name, _, revision = self.value.partition("@")
        is_named = self.outcome.fate is Fate.REVISED and HUB_NAME.fullmatch(name) and revision
        return (name, revision) if is_named else (self.value, "")


@dataclass(frozen=True, slots=True)
class Heard:
    """Parsed command line, and the environment."""

    given: Mapping[str, list[str]]  # values by the names of the other server's flags
    rest: Sequence[str]  # arguments that are not in the table: flags of weft, or mistakes
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
        """Whether the flag on which a default depends is given."""
        variable = beside.upper().replace("-", "_")
        return not beside or any((self.given.get(beside), self.environment.get(variable),
                                  self.environment.get(f"WEFT_{variable}")))

    def counts(self, said: Said) -> bool:
        """Whether a value has an effect. A flag always has; a variable or default has none if weft's setting is given.

        It has none either if it would set a variable that is set already.
        """
        name = "num_shard" if said.outcome.fate is Fate.SHARDS else said.outcome.becomes
        if said.by == "flag":
            return True
        if name in OURS:
            ours = (variable for variable in OURS[name].variables if variable.startswith("WEFT_"))
            return not self.has_flag(name) and not any(map(self.environment.get, ours))
        return not self.environment.get(name) or name == said.name

    def has(self, setting: str) -> bool:
        """Whether a setting is given by a flag of weft, or by a variable that `weft serve` reads."""
        return self.has_flag(setting) or any(map(self.environment.get, OURS[setting].variables))

    def has_flag(self, setting: str) -> bool:
        flags = OURS[setting].flags
        return any(word.partition("=")[0] in {*flags, negated(flags[0])} for word in self.rest)


def without_overruled(said: Sequence[Said]) -> Iterator[Said]:
    """Yield all flags; an overridden one is marked as without effect, which is reported if the values differ."""
    over = {item.flag.over: item for item in said}
    for item in said:
        if winner := over.get(item.flag.name):
            nothing = silent if item.value == winner.value else unused
            yield replace(item, flag=replace(item.flag, outcomes=(nothing(f"{winner.name} counts"),)))
        else:
            yield item


def check(said: Sequence[Said]) -> None:
    """Raise ValueError for refused flags, all in one message, or for flags that repeat or contradict each other."""
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
