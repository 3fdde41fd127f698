"""Types of the tables that translate another server's flags, and the functions that build table entries."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

FlagKind = Literal["value", "switch", "list"]
TRUE_VALUES, FALSE_VALUES = ("true", "1"), ("false", "0")


class FlagAction(StrEnum):
    """Action that weft takes for a flag of another server."""

    SETTING = "setting"  # sets a setting of weft
    MODEL_AND_REVISION = "revised"  # as SETTING, and a name at the Hub may be followed by @ and a revision
    PRELOADED_ADAPTERS = "adapters"  # lists the adapters that are loaded at start
    VARIABLE = "variable"  # sets an environment variable that weft reads
    NUM_SHARDS = "shards"  # determines the number of shards, together with others
    ADDRESS = "address"  # as SETTING, but a variable that holds the machine's name is ignored
    SHOW_ENVIRONMENT = "shown"  # reports the environment at start
    DOWNLOAD_ONLY = "downloaded"  # downloads the model and serves nothing
    IGNORED = "unused"  # has no effect, which is reported at start
    UNNEEDED = "silent"  # has no effect and needs none
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class FlagEffect:
    """Effect of another server's flag for some of its values, or for all."""

    action: FlagAction
    target_name: str = ""  # the setting, or the variable
    value_template: str = ""  # its value, with {} for the given value; empty: the given value itself
    reason: str = ""
    required_setting: str = ""  # a setting that this one requires
    matching_values: tuple[str, ...] = ()  # the given values to which this applies, in lower case; empty: all

    def applies_to(self, value: str) -> bool:
        return not self.matching_values or value.lower() in self.matching_values


@dataclass(frozen=True, slots=True)
class ForeignFlag:
    """Flag of another server. The first outcome that applies to a value is used."""

    name: str
    effects: tuple[FlagEffect, ...]
    kind: FlagKind = "value"
    short_name: str = ""
    default: str = ""  # the other server's default, if it differs from weft's
    default_requires: str = ""  # the flag without which the default does not apply
    overrides: str = ""  # the flag that this one overrides
    conflicts_with: str = ""  # the switch that must not be on together with this one
    is_only_variable: bool = False

    @property
    def environment_variable(self) -> str:
        return self.name.upper().replace("-", "_")

    @property
    def spellings(self) -> tuple[str, ...]:
        return () if self.is_only_variable else (f"--{self.name}",
                                                 *([f"-{self.short_name}"] if self.short_name else []))

    def find_effect(self, value: str) -> FlagEffect | None:
        return next((outcome for outcome in self.effects if outcome.applies_to(value)), None)

    def list_accepted_values(self) -> Iterator[str]:
        """Yield the accepted values, none if any value is accepted."""
        for outcome in self.effects:
            yield from outcome.matching_values


@dataclass(frozen=True, slots=True)
class ImplicitDefault:
    """Value of a weft setting for which the other server has no flag, to match its fixed behaviour."""

    setting_name: str
    value: str
    required_flag: str = ""  # the flag without which the value does not apply


@dataclass(frozen=True, slots=True)
class ForeignFlagTable:
    """All flags of one program, in the order of its help and of its documentation."""

    program: str
    flags: tuple[ForeignFlag, ...]
    fixed_settings: tuple[ImplicitDefault, ...] = ()

    def select_flags(self, *names: str) -> tuple[ForeignFlag, ...]:
        """Return the flags of these names, for the table of another program that shares them."""
        known = {flag.name: flag for flag in self.flags}
        return tuple(known[name] for name in names)


# -- constructors of table entries


def make_setting_effect(name: str, *matching_values: str, value_template: str = "",
                        required_setting: str = "") -> FlagEffect:
    """Return the outcome that sets a setting of weft."""
    return FlagEffect(FlagAction.SETTING, name, value_template, matching_values=matching_values,
                      required_setting=required_setting)


def environment_variable_effect(name: str, value_template: str = "") -> FlagEffect:
    return FlagEffect(FlagAction.VARIABLE, name, value_template)


def ignored_effect(reason: str, *matching_values: str) -> FlagEffect:
    return FlagEffect(FlagAction.IGNORED, reason=reason, matching_values=matching_values)


def unneeded_effect(reason: str, *matching_values: str) -> FlagEffect:
    return FlagEffect(FlagAction.UNNEEDED, reason=reason, matching_values=matching_values)


def refused_effect(reason: str, *matching_values: str) -> FlagEffect:
    return FlagEffect(FlagAction.REFUSED, reason=reason, matching_values=matching_values)


def unchanged_flag(name: str, default: str = "", short_name: str = "", kind: FlagKind = "value",
                   default_requires: str = "") -> ForeignFlag:
    """Return a flag that has the same name and meaning in weft."""
    effect = make_setting_effect(name.replace("-", "_"))
    return ForeignFlag(name, (effect,), kind, short_name, default, default_requires)


def make_switch_flag(name: str, effect_if_true: FlagEffect, reason_if_false: str = "it is off by default",
                     conflicts_with: str = "") -> ForeignFlag:
    """Return a switch. `effect_if_true` is the outcome if it is true, `reason_if_false` the reason why false needs no
    action."""
    return ForeignFlag(name, (replace(effect_if_true, matching_values=TRUE_VALUES),
                              unneeded_effect(reason_if_false, *FALSE_VALUES)), "switch", conflicts_with=conflicts_with)


def negate_flag(flag: str) -> str:
    """Return the flag that turns a switch of weft off."""
    return flag.replace("--", "--no-", 1)


def variable_only_flag(name: str, *effects: FlagEffect) -> ForeignFlag:
    return ForeignFlag(name, effects, is_only_variable=True)
