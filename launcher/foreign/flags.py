"""What becomes of a flag that another server has, as data: the words that its table is written in.

Knows no server and no flag.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

Kind = Literal["value", "switch", "list"]
TRUE, FALSE = ("true", "1"), ("false", "0")


class Fate(StrEnum):
    SETTING = "setting"  # one of ours is set
    REVISED = "revised"  # as SETTING, and a name at the Hub may have its revision behind an @
    ADAPTERS = "adapters"  # lists the adapters that are loaded at start
    VARIABLE = "variable"  # a variable is set, which we follow
    SHARDS = "shards"  # decides with others how many shards there are
    ADDRESS = "address"  # as SETTING, but a variable that holds a name of the machine does not count
    SHOWN = "shown"  # the environment is described at start
    DOWNLOADED = "downloaded"  # the model is downloaded, and nothing served
    UNUSED = "unused"  # has no effect, and that is said at start
    SILENT = "silent"  # has no effect, and need not have one
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Outcome:
    fate: Fate
    becomes: str = ""  # the setting, or the variable
    gives: str = ""  # what it is set to, with {} for what was given; empty: to that alone
    why: str = ""
    needs: str = ""  # the setting without which this one is of no use
    values: tuple[str, ...] = ()  # what must have been given, in lower case; none: anything

    def holds_for(self, value: str) -> bool:
        return not self.values or value.lower() in self.values


@dataclass(frozen=True, slots=True)
class Flag:
    """The first outcome that holds for a value counts."""

    name: str
    outcomes: tuple[Outcome, ...]
    kind: Kind = "value"
    short: str = ""
    default: str = ""  # what counts where nothing is given, if that is not our default
    beside: str = ""  # the flag without which the default means nothing
    over: str = ""  # the flag that does not count beside this one
    against: str = ""  # the switch that cannot be on when this one is
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
        """All that is accepted, where not anything is."""
        for outcome in self.outcomes:
            yield from outcome.values


@dataclass(frozen=True, slots=True)
class Always:
    """A setting of ours that no flag of theirs sets, as it is there."""

    setting: str
    value: str
    beside: str = ""  # as with a flag


@dataclass(frozen=True, slots=True)
class Table:
    """All flags of one program, in the order in which they are told."""

    program: str
    flags: tuple[Flag, ...]
    always: tuple[Always, ...] = ()

    def taken(self, *names: str) -> tuple[Flag, ...]:
        """Those that another program has, too."""
        known = {flag.name: flag for flag in self.flags}
        return tuple(known[name] for name in names)


# -- the words of a table


def setting(name: str, *values: str, gives: str = "", needs: str = "") -> Outcome:
    """One of ours."""
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
    """A flag that is one of ours."""
    return Flag(name, (setting(name.replace("-", "_")),), kind, short, default, beside)


def switch(name: str, on: Outcome, off: str = "it is off by default", against: str = "") -> Flag:
    """`on` is what becomes of it where it is given, `off` why nothing need be done where it is given as false."""
    return Flag(name, (replace(on, values=TRUE), silent(off, *FALSE)), "switch", against=against)


def negated(flag: str) -> str:
    """What turns a switch of ours off."""
    return flag.replace("--", "--no-", 1)


def only_variable(name: str, *outcomes: Outcome) -> Flag:
    return Flag(name, outcomes, only_variable=True)
