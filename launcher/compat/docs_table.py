"""Descriptions of how another server's flags are translated, for its help and for the tables of docs/migrating.md."""

from collections.abc import Iterator, Mapping

from launcher.compat.flag_table import Fate, Flag, Outcome, Table, negated

WORDS: Mapping[Fate, str] = {
    Fate.SETTING: "becomes {flag}",
    Fate.REVISED: "the same, and org/name@v2 names a revision, too",
    Fate.ADAPTERS: "becomes --adapters and {flag} for each; folders need --adapter-root",
    Fate.VARIABLE: "sets {becomes}; as a variable, if that is not set",
    Fate.SHARDS: "--sharded and --num-shard together say how many shards there are",
    Fate.ADDRESS: "the same, but a variable that holds no address means 0.0.0.0",
    Fate.SHOWN: "tells packages and driver at start",
    Fate.DOWNLOADED: "downloads the model, and ends",
    Fate.UNUSED: "no effect: {why}",
    Fate.SILENT: "not needed: {why}",
    Fate.REFUSED: "refused: {why}",
}


def meaning(flag: Flag) -> str:
    return "; ".join(clauses(flag))


def clauses(flag: Flag) -> Iterator[str]:
    """Yield a clause for each outcome, except of a switch that is off, and for its default and its conflicts."""
    first, *others = flag.outcomes
    yield words(flag, first) if flag.kind == "switch" or not others else f"{listed(first)}: {words(flag, first)}"
    for outcome in () if flag.kind == "switch" else others:
        yield f"{listed(outcome) or 'otherwise'}: {words(flag, outcome)}"
    if flag.default:
        yield f"{flag.default} unless given"
    if flag.over:
        yield f"--{flag.over} does not count beside it"
    if flag.against:
        yield f"not beside --{flag.against}"


def listed(outcome: Outcome) -> str:
    return ", ".join(outcome.values)


def words(flag: Flag, outcome: Outcome) -> str:
    gives = outcome.gives.replace("{}", "VALUE")
    told = WORDS[outcome.fate].format(flag=set_to(outcome.becomes, gives), why=outcome.why,
                                      becomes=f"{outcome.becomes} to {gives}" if gives else outcome.becomes)
    return ("the same" if is_same(flag, outcome) else told) + (
        f", with {spelled(outcome.needs)}" if outcome.needs else "")


def is_same(flag: Flag, outcome: Outcome) -> bool:
    ours = {Fate.SETTING: flag.name.replace("-", "_"), Fate.VARIABLE: flag.variable}.get(outcome.fate)
    return outcome.becomes == ours and not outcome.gives


def set_to(setting: str, value: str) -> str:
    return negated(spelled(setting)) if value == "false" else f"{spelled(setting)} {value}".strip()


def spelled(setting: str) -> str:
    return "--" + setting.replace("_", "-")


def rows(table: Table) -> Iterator[str]:
    """Yield the rows of a table in Markdown."""
    yield "| Flag | Variable | Here |"
    yield "| --- | --- | --- |"
    for flag in table.flags:
        flags = ", ".join(f"`{spelling}`" for spelling in flag.spellings)
        yield f"| {flags} | `{flag.variable}` | {meaning(flag)} |"
