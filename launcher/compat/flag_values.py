"""Values of another server's flags, from its command line, from variables, or from its defaults.

The order of precedence is: a flag, a variable of weft, a variable of the other server, a default of the other server.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from launcher.compat.foreign_flag_table import (
    TRUE_VALUES,
    FlagAction,
    FlagEffect,
    ForeignFlag,
    ForeignFlagTable,
    ignored_effect,
    negate_flag,
    unneeded_effect,
)
from launcher.hub.resolve import HUB_NAME_PATTERN
from launcher.settings import SETTINGS_BY_NAME


@dataclass(frozen=True, slots=True)
class ResolvedFlag:
    """Flag with the values that were given, or with its default."""

    flag: ForeignFlag
    source: Literal["flag", "variable", "default"]
    values: Sequence[str]

    @property
    def name_as_given(self) -> str:
        return (self.flag.environment_variable if self.source == "variable" or self.flag.is_only_variable
                else f"--{self.flag.name}")

    @property
    def value(self) -> str:
        return self.values[-1]

    @property
    def effect(self) -> FlagEffect:
        if effect := self.flag.find_effect(self.value):
            return effect
        accepted = ", ".join(self.flag.list_accepted_values())
        raise ValueError(f"{self.name_as_given} must be one of {accepted}, got {self.value}")

    @property
    def is_true(self) -> bool:
        return self.value.lower() in TRUE_VALUES

    @property
    def model_and_revision(self) -> tuple[str, str]:
        """Model and revision of `name@revision`. A folder has no revision, even if its name contains an @."""
        name, _, revision = self.value.partition("@")
        is_named = self.effect.action is FlagAction.MODEL_AND_REVISION and HUB_NAME_PATTERN.fullmatch(name) and revision
        return (name, revision) if is_named else (self.value, "")


@dataclass(frozen=True, slots=True)
class ParsedArguments:
    """Parsed command line, and the environment."""

    values_by_flag: Mapping[str, list[str]]  # values by the names of the other server's flags
    remaining_arguments: Sequence[str]  # arguments that are not in the table: flags of weft, or mistakes
    environment: Mapping[str, str]

    def resolve_flags(self, table: ForeignFlagTable) -> list[ResolvedFlag]:
        return [*mark_overridden_flags([item for flag in table.flags for item in self.resolve_flag(flag)
                                        if self.takes_precedence(item)])]

    def resolve_flag(self, flag: ForeignFlag) -> Iterator[ResolvedFlag]:
        if values := self.values_by_flag.get(flag.name):
            yield ResolvedFlag(flag, "flag", values if flag.kind == "list" else values[-1:])
        elif value := self.environment.get(flag.environment_variable):
            yield ResolvedFlag(flag, "variable", re.split(r"[\s,]+", value.strip()) if flag.kind == "list" else [value])
        elif flag.default and self.is_prerequisite_flag_given(flag.default_requires):
            yield ResolvedFlag(flag, "default", [flag.default])

    def get_implicit_defaults(self, table: ForeignFlagTable) -> dict[str, str]:
        return {item.setting_name: item.value for item in table.fixed_settings
                if self.is_prerequisite_flag_given(item.required_flag)}

    def is_prerequisite_flag_given(self, flag_name: str) -> bool:
        """Whether the flag on which a default depends is given."""
        variable = flag_name.upper().replace("-", "_")
        return not flag_name or any((self.values_by_flag.get(flag_name), self.environment.get(variable),
                                     self.environment.get(f"WEFT_{variable}")))

    def takes_precedence(self, resolved_flag: ResolvedFlag) -> bool:
        """Whether a value counts. A flag always does; a variable or default does not if weft's setting is given, or if
        it would set a variable that is set already."""
        name = "num_shard" if resolved_flag.effect.action is FlagAction.NUM_SHARDS else resolved_flag.effect.target_name
        if resolved_flag.source == "flag":
            return True
        if name in SETTINGS_BY_NAME:
            weft_variables = (variable for variable in SETTINGS_BY_NAME[name].environment_variables
                              if variable.startswith("WEFT_"))
            return not self.is_weft_flag_given(name) and not any(map(self.environment.get, weft_variables))
        return not self.environment.get(name) or name == resolved_flag.name_as_given

    def is_setting_given(self, setting_name: str) -> bool:
        """Whether a setting is given by a flag of weft, or by a variable that `weft serve` reads."""
        return self.is_weft_flag_given(setting_name) or any(map(self.environment.get,
                                                                SETTINGS_BY_NAME[setting_name].environment_variables))

    def is_weft_flag_given(self, setting_name: str) -> bool:
        flags = SETTINGS_BY_NAME[setting_name].flags
        return any(word.partition("=")[0] in {*flags, negate_flag(flags[0])} for word in self.remaining_arguments)


def mark_overridden_flags(resolved_flags: Sequence[ResolvedFlag]) -> Iterator[ResolvedFlag]:
    """Yield all flags; an overridden one is marked as without effect, which is reported if the values differ."""
    overriding_flags = {item.flag.overrides: item for item in resolved_flags}
    for item in resolved_flags:
        if winner := overriding_flags.get(item.flag.name):
            make_effect = unneeded_effect if item.value == winner.value else ignored_effect
            yield replace(item, flag=replace(item.flag, effects=(make_effect(f"{winner.name_as_given} counts"),)))
        else:
            yield item


def list_refusals(resolved_flags: Sequence[ResolvedFlag]) -> list[str]:
    """Return a message for each refused flag."""
    return [f"{item.name_as_given} is refused: {item.effect.reason}" for item in resolved_flags
            if item.effect.action is FlagAction.REFUSED]


def reject_refused_or_conflicting_flags(resolved_flags: Sequence[ResolvedFlag]) -> None:
    """Raise ValueError for refused flags, all in one message, or for flags that repeat or contradict each other."""
    if refusals := list_refusals(resolved_flags):
        raise ValueError("; and ".join(refusals))
    reject_conflicting_flags(resolved_flags)


def reject_conflicting_flags(resolved_flags: Sequence[ResolvedFlag]) -> None:
    """Raise ValueError for flags that repeat or contradict each other."""
    names = Counter(item.effect.target_name for item in resolved_flags if item.effect.action is FlagAction.SETTING)
    for name in (name for name, count in names.items() if count > 1):
        both = " and ".join(item.name_as_given for item in resolved_flags if item.effect.target_name == name)
        raise ValueError(f"{both} are given, and mean the same; give one")
    for item in resolved_flags:
        check_conflicts(item, resolved_flags)


def check_conflicts(resolved_flag: ResolvedFlag, resolved_flags: Sequence[ResolvedFlag]) -> None:
    for other in resolved_flags:
        if resolved_flag.flag.conflicts_with == other.flag.name and resolved_flag.is_true and other.is_true:
            raise ValueError(f"{resolved_flag.name_as_given} and {other.name_as_given} contradict each other; give one")
        if resolved_flag.model_and_revision[1] and other.effect.target_name == "revision":
            raise ValueError(f"{resolved_flag.name_as_given} names the revision "
                             f"{resolved_flag.model_and_revision[1]} already, so {other.name_as_given} ({other.value}) "
                             "must not be given")
