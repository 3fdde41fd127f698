"""Rules of `weft bench`'s flags: which can be combined, and which a second run takes over from the first.

A flag without effect is rejected: what was measured would not be what was asked for.
"""

import shlex
from collections.abc import Iterator, Sequence
from itertools import combinations

REQUIRED_BASE_SETTINGS = (("burst", "rate"), ("even", "rate"), ("speed", "trace"), ("prefixes", "shared_prefix"),
                          ("turns", "versus"))
EXCLUSIVE_GROUPS = (  # groups of which at most one flag may be given
    ("concurrency", "rate", "trace", "wait"), ("even", "burst"), ("prompts", "prompt_tokens"),
    ("prompts", "shared_prefix"), ("prompts", "tokenizer"), ("trace", "prompt_tokens"), ("trace", "output_tokens"),
    ("numsamples", "requests"), ("numtokens_range", "output_tokens"))
UNSUPPORTED_BY_DIALECT = {  # setting -> dialects whose requests have no field for it
    "adapters": ("batching",), "model": ("batching", "tgi", "lorax"), "sampling": ("batching",),
    "stop_at_end": ("batching",)}
EXCLUSIVE_PAIRS = frozenset(pair for group in EXCLUSIVE_GROUPS for pair in combinations(group, 2))
API_KEY_SETTING, VERSUS_SETTING = "api_key", "versus"
UNDERSCORED_SETTING = "numtokens_range"  # as the original's client spells it


def setting_to_flag(name: str) -> str:
    return f"--{name if name == UNDERSCORED_SETTING else name.replace('_', '-')}"


def flag_to_setting(argument: str) -> str:
    """Return the name of the setting for a flag, given with or without a value."""
    return argument.partition("=")[0].lstrip("-").replace("-", "_")


def find_given_settings(arguments: Sequence[str]) -> set[str]:
    return {flag_to_setting(word) for word in arguments if word.startswith("--")}


def check_exclusive_settings(changed_settings: set[str]) -> None:
    """Raise ValueError if two of the given settings, those that differ from their defaults, exclude each other."""
    for one, other in sorted(EXCLUSIVE_PAIRS):
        if {one, other} <= changed_settings:
            raise ValueError(
                f"{setting_to_flag(one)} and {setting_to_flag(other)} cannot be combined: give one of them")


def check_settings_have_effect(own_settings: set[str], changed_settings: set[str], dialect: str) -> None:
    """Raise ValueError if one of the flags `own_settings` has no effect.

    `own_settings` are the run's own flags: those that a second run takes over from the first may have no effect."""
    for modifier, base in REQUIRED_BASE_SETTINGS:
        if modifier in own_settings and base not in changed_settings:
            raise ValueError(
                f"{setting_to_flag(modifier)} only applies with {setting_to_flag(base)}, which is not given")
    for name in sorted(own_settings & changed_settings & UNSUPPORTED_BY_DIALECT.keys()):
        if dialect in UNSUPPORTED_BY_DIALECT[name]:
            raise ValueError(f"{setting_to_flag(name)}: a request of --dialect {dialect} has no field for it")


def find_replaced_settings(second_run_arguments: Sequence[str]) -> set[str]:
    """Return the settings of a first run that the second run's own flags replace."""
    names = find_given_settings(second_run_arguments)
    excluded_names = {name for pair in EXCLUSIVE_PAIRS for name in pair if names & set(pair)}
    return {VERSUS_SETTING, "turns", *names, *excluded_names}


def format_masked_command(arguments: Sequence[str]) -> str:
    """Return the words as one shell line with API keys masked."""
    masked, remaining = [], iter(arguments)
    for word in remaining:
        flag, equals, value = word.partition("=")
        masked.append(word)
        if flag_to_setting(word) in {API_KEY_SETTING, VERSUS_SETTING} and word.startswith("--"):
            value = value if equals else next(remaining, "")
            value = format_masked_command(shlex.split(value)) if flag_to_setting(word) == VERSUS_SETTING else "..."
            masked[-1:] = [f"{flag}={value}"] if equals else [flag, value]
    return shlex.join(masked)


def drop_settings(arguments: Sequence[str], names: set[str]) -> list[str]:
    return [word for name, group in iter_flags_with_values(arguments) if name not in names for word in group]


def iter_flags_with_values(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag with all its values. The value of --versus looks like a flag itself."""
    group: list[str] = []
    for word in arguments:
        is_value = not word.startswith("--") or (len(group) == 1 and group[0] == setting_to_flag(VERSUS_SETTING))
        if group and not is_value:
            yield flag_to_setting(group[0]), group
            group = []
        group.append(word)
    if group:
        yield flag_to_setting(group[0]), group
