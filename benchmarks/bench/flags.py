"""Rules of `weft bench`'s flags: which can be combined, and which a second run takes over from the first.

A flag without effect is rejected: what was measured would not be what was asked for.
"""

import shlex
from collections.abc import Iterator, Sequence
from itertools import combinations

BELONGS = (("burst", "rate"), ("even", "rate"), ("speed", "trace"), ("prefixes", "shared_prefix"), ("turns", "versus"))
EXCLUDED = (  # groups of which at most one flag may be given
    ("concurrency", "rate", "trace", "wait"), ("even", "burst"), ("prompts", "prompt_tokens"),
    ("prompts", "shared_prefix"), ("prompts", "tokenizer"), ("trace", "prompt_tokens"), ("trace", "output_tokens"),
    ("numsamples", "requests"), ("numtokens_range", "output_tokens"))
UNHEARD = {  # setting -> dialects whose requests have no field for it
    "adapters": ("batching",), "model": ("batching", "tgi", "lorax"), "sampling": ("batching",),
    "stop_at_end": ("batching", "tgi")}
PAIRS = frozenset(pair for group in EXCLUDED for pair in combinations(group, 2))
SECRET, SECOND = "api_key", "versus"
UNDERLINED = "numtokens_range"  # as the original's client spells it


def flag_of(name: str) -> str:
    return f"--{name if name == UNDERLINED else name.replace('_', '-')}"


def name_of(word: str) -> str:
    """Return the name of the setting for a flag, given with or without a value."""
    return word.partition("=")[0].lstrip("-").replace("-", "_")


def names_in(words: Sequence[str]) -> set[str]:
    return {name_of(word) for word in words if word.startswith("--")}


def check_pairs(given: set[str]) -> None:
    """Raise ValueError if two of the given settings, those that differ from their defaults, exclude each other."""
    for one, other in sorted(PAIRS):
        if {one, other} <= given:
            raise ValueError(f"{flag_of(one)} and {flag_of(other)} cannot be combined: give one of them")


def check_effect(names: set[str], given: set[str], dialect: str) -> None:
    """Raise ValueError if one of the flags `names` has no effect.

    `names` are the run's own flags: those that a second run takes over from the first may have no effect."""
    for modifier, base in BELONGS:
        if modifier in names and base not in given:
            raise ValueError(f"{flag_of(modifier)} only applies with {flag_of(base)}, which is not given")
    for name in sorted(names & given & UNHEARD.keys()):
        if dialect in UNHEARD[name]:
            raise ValueError(f"{flag_of(name)}: a request of --dialect {dialect} has no field for it")


def replaced(own: Sequence[str]) -> set[str]:
    """Return the settings of a first run that the second run's own flags replace."""
    names = names_in(own)
    rivals = {name for pair in PAIRS for name in pair if names & set(pair)}
    return {SECOND, "turns", *names, *rivals}


def shown(words: Sequence[str]) -> str:
    """Return the words as one shell line with API keys masked."""
    masked, rest = [], iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        masked.append(word)
        if name_of(word) in {SECRET, SECOND} and word.startswith("--"):
            value = value if equals else next(rest, "")
            value = shown(shlex.split(value)) if name_of(word) == SECOND else "..."
            masked[-1:] = [f"{flag}={value}"] if equals else [flag, value]
    return shlex.join(masked)


def without(words: Sequence[str], names: set[str]) -> list[str]:
    return [word for name, group in groups(words) if name not in names for word in group]


def groups(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag with all its values. The value of --versus looks like a flag itself."""
    group: list[str] = []
    for word in words:
        is_value = not word.startswith("--") or (len(group) == 1 and group[0] == flag_of(SECOND))
        if group and not is_value:
            yield name_of(group[0]), group
            group = []
        group.append(word)
    if group:
        yield name_of(group[0]), group
