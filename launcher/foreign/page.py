"""What becomes of each flag of another server, in words: for its help, and as the table of docs/migrating.md.

Knows no server and no flag.
"""

from collections.abc import Iterator, Mapping

from launcher.foreign.flags import Fate, Flag, Outcome, Table

WORDS: Mapping[Fate, str] = {
    Fate.SETTING: "becomes {flag}",
    Fate.VARIABLE: "sets {becomes}; as a variable, if that is not set",
    Fate.SHARDS: "--sharded and --num-shard together say how many shards there are",
    Fate.ADDRESS: "the same, but a variable that holds no address means 0.0.0.0",
    Fate.SHOWN: "tells packages and driver at start",
    Fate.UNUSED: "no effect: {why}",
    Fate.SILENT: "not needed: {why}",
    Fate.REFUSED: "refused: {why}",
}


def meaning(flag: Flag) -> str:
    return "; ".join(clauses(flag))


def clauses(flag: Flag) -> Iterator[str]:
    """One for each outcome, but for those of a switch that is off."""
    first, *others = flag.outcomes
    yield words(flag, first) if flag.kind == "switch" or not others else f"{listed(first)}: {words(flag, first)}"
    for outcome in () if flag.kind == "switch" else others:
        yield f"{listed(outcome) or 'otherwise'}: {words(flag, outcome)}"
    if flag.default:
        yield f"{flag.default} unless given"


def listed(outcome: Outcome) -> str:
    return ", ".join(outcome.values)


def words(flag: Flag, outcome: Outcome) -> str:
    ours = "--" + outcome.becomes.replace("_", "-")
    if outcome.fate is Fate.SETTING and not outcome.gives and ours == f"--{flag.name}":
        return "the same"
    told = f"{ours} {outcome.gives}".strip()
    return WORDS[outcome.fate].format(flag=told, becomes=outcome.becomes, why=outcome.why)


def rows(table: Table) -> Iterator[str]:
    """Of a table in Markdown."""
    yield "| Flag | Variable | Here |"
    yield "| --- | --- | --- |"
    for flag in table.flags:
        flags = ", ".join(f"`{spelling}`" for spelling in flag.spellings)
        yield f"| {flags} | `{flag.variable}` | {meaning(flag)} |"
