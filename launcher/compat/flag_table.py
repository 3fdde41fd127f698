"""Types of the tables that translate another server's flags, and the functions that build table entries."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

Kind = Literal["value", "switch", "list"]
TRUE, FALSE = ("true", "1"), ("false", "0")


class Fate(StrEnum):
    SETTING = "setting"  # sets a setting of weft
    REVISED = "revised"  # as SETTING, and a name at the Hub may be followed by @ and a revision
    ADAPTERS = "adapters"  # lists the adapters that are loaded at start
    VARIABLE = "variable"  # sets an environment variable that weft reads
    SHARDS = "shards"  # determines the number of shards, together with others
    ADDRESS = "address"  # as SETTING, but a variable that holds the machine's name is ignored
    SHOWN = "shown"  # reports the environment at start
    DOWNLOADED = "downloaded"  # downloads the model and serves nothing
    UNUSED = "unused"  # has no effect, which is reported at start
    SILENT = "silent"  # has no effect and needs none
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Outcome:
    fate: Fate
    becomes: str = ""  # the setting, or the variable
    gives: str = ""  # its value, with {} for the given value; empty: the given value itself
    why: str = ""
    needs: str = ""  # a setting that this one requires
    values: tuple[str, ...] = ()  # the given values to which this applies, in lower case; empty: all

    def holds_for(self, value: str) -> bool:
        return not self.values or value.lower() in self.values


@dataclass(frozen=True, slots=True)
class Flag:
    """Flag of another server. The first outcome that applies to a value is used."""

    name: str
    outcomes: tuple[Outcome, ...]
    kind: Kind = "value"
    short: str = ""
    default: str = ""  # the other server's default, if it differs from weft's
    beside: str = ""  # the flag without which the default does not apply
    over: str = ""  # the flag that this one overrides
    against: str = ""  # the switch that must not be on together with this one
    only_variable: bool = False

    @property
    def variable(self) -> str:
        return self.name.upper().replace("-", "_")

    @property
    def spellings(self) -> tuple[str, ...]:
        return () if self.only_variable else (f"--{self.name}", *([f"-{self.short}"] if self.short else []))

    def outcome(self, value: str) -> Outcome | None:
        return next((outcome for outcome in self.outcomes if outcome.holds_for(value)), None)

    def values(self) -> Iterator[str]:
        """Yield the accepted values, none if any value is accepted."""
        for outcome in self.outcomes:
            yield from outcome.values


@dataclass(frozen=True, slots=True)
class Always:
    """Value of a weft setting for which the other server has no flag, to match its fixed behaviour."""

    setting: str
    value: str
    beside: str = ""  # as in Flag


@dataclass(frozen=True, slots=True)
class Table:
    """All flags of one program, in the order of its help and of its documentation."""

    program: str
    flags: tuple[Flag, ...]
    always: tuple[Always, ...] = ()

    def taken(self, *names: str) -> tuple[Flag, ...]:
        """Return the flags of these names, for the table of another program that shares them."""
        known = {flag.name: flag for flag in self.flags}
        return tuple(known[name] for name in names)


# -- constructors of table entries


def setting(name: str, *values: str, gives: str = "", needs: str = "") -> Outcome:
    """Return the outcome that sets a setting of weft."""
    return Outcome(Fate.SETTING, name, gives, values=values, needs=needs)


def variable(name: str, gives: str = "") -> Outcome:
    return Outcome(Fate.VARIABLE, name, gives)


def unused(why: str, *values: str) -> Outcome:
    return Outcome(Fate.UNUSED, why=why, values=values)


def silent(why: str, *values: str) -> Outcome:
    return Outcome(Fate.SILENT, why=why, values=values)


def refused(why: str, *values: str) -> Outcome:
    return Outcome(Fate.REFUSED, why=why, values=values)


def same(name: str, default: str = "", short: str = "", kind: Kind = "value", beside: str = "") -> Flag:
    """Return a flag that has the same name and meaning in weft."""
    return Flag(name, (setting(name.replace("-", "_")),), kind, short, default, beside)


def switch(name: str, on: Outcome, off: str = "it is off by default", against: str = "") -> Flag:
    """Return a switch. `on` is the outcome if it is true, `off` the reason why false needs no action."""
    return Flag(name, (replace(on, values=TRUE), silent(off, *FALSE)), "switch", against=against)


def negated(flag: str) -> str:
    """Return the flag that turns a switch of weft off."""
    return flag.replace("--", "--no-", 1)


def only_variable(name: str, *outcomes: Outcome) -> Flag:
    return Flag(name, outcomes, only_variable=True)
