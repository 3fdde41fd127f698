"""Descriptions of how another server's flags are translated, for its help and for the tables of
docs/reference/migration-flags.md."""

from collections.abc import Iterator, Mapping

from launcher.compat.foreign_flag_table import FlagAction, FlagEffect, ForeignFlag, ForeignFlagTable, negate_flag

ACTION_TEXTS: Mapping[FlagAction, str] = {
    FlagAction.SETTING: "becomes {flag}",
    FlagAction.MODEL_AND_REVISION: "the same, and org/name@v2 names a revision, too",
    FlagAction.PRELOADED_ADAPTERS: "becomes --adapters and {flag} for each; folders need --adapter-root",
    FlagAction.VARIABLE: "sets {becomes}; as a variable, if that is not set",
    FlagAction.NUM_SHARDS: "--sharded and --num-shard together say how many shards there are",
    FlagAction.ADDRESS: "the same, but a variable that holds no address means 0.0.0.0",
    FlagAction.SHOW_ENVIRONMENT: "tells packages and driver at start",
    FlagAction.DOWNLOAD_ONLY: "downloads the model, and ends",
    FlagAction.IGNORED: "no effect: {why}",
    FlagAction.UNNEEDED: "not needed: {why}",
    FlagAction.REFUSED: "refused: {why}",
}


def describe_flag(flag: ForeignFlag) -> str:
    return "; ".join(describe_flag_clauses(flag))


def describe_flag_clauses(flag: ForeignFlag) -> Iterator[str]:
    """Yield a clause for each outcome, except of a switch that is off, and for its default and its conflicts."""
    first_effect, *other_effects = flag.effects
    yield (describe_effect(flag, first_effect) if flag.kind == "switch" or not other_effects
           else f"{join_matching_values(first_effect)}: {describe_effect(flag, first_effect)}")
    for outcome in () if flag.kind == "switch" else other_effects:
        yield f"{join_matching_values(outcome) or 'otherwise'}: {describe_effect(flag, outcome)}"
    if flag.default:
        yield f"{flag.default} unless given"
    if flag.overrides:
        yield f"--{flag.overrides} does not count beside it"
    if flag.conflicts_with:
        yield f"not beside --{flag.conflicts_with}"


def join_matching_values(effect: FlagEffect) -> str:
    return ", ".join(effect.matching_values)


def describe_effect(flag: ForeignFlag, effect: FlagEffect) -> str:
    value = effect.value_template.replace("{}", "VALUE")
    text = ACTION_TEXTS[effect.action].format(flag=format_setting_flag(effect.target_name, value), why=effect.reason,
                                              becomes=f"{effect.target_name} to {value}" if value
                                              else effect.target_name)
    return ("the same" if is_same_in_weft(flag, effect) else text) + (
        f", with {format_flag_name(effect.required_setting)}" if effect.required_setting else "")


def is_same_in_weft(flag: ForeignFlag, effect: FlagEffect) -> bool:
    weft_name = {FlagAction.SETTING: flag.name.replace("-", "_"),
                 FlagAction.VARIABLE: flag.environment_variable}.get(effect.action)
    return effect.target_name == weft_name and not effect.value_template


def format_setting_flag(setting_name: str, value: str) -> str:
    return negate_flag(
        format_flag_name(setting_name)) if value == "false" else f"{format_flag_name(setting_name)} {value}".strip()


def format_flag_name(setting_name: str) -> str:
    return "--" + setting_name.replace("_", "-")


def format_flag_table_rows(table: ForeignFlagTable) -> Iterator[str]:
    """Yield the rows of a table in Markdown."""
    yield "| Flag | Variable | In weft |"
    yield "| --- | --- | --- |"
    for flag in table.flags:
        flags = ", ".join(f"`{spelling}`" for spelling in flag.spellings)
        yield f"| {flags} | `{flag.environment_variable}` | {describe_flag(flag)} |"
